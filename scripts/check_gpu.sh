#!/usr/bin/env bash
# What a GPU is to show, the most valuable first, so that a machine that goes away has told most:
#   bash scripts/check_gpu.sh [OUT]     default: ./checks; needs the project installed with [dev]
# LIMIT_* set the seconds of each.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-checks}
source scripts/checks.sh
python=${PYTHON:-python}

check machine 60 nvidia-smi
check cuda_tests "${LIMIT_TESTS:-900}" "$python" -m pytest -m "not slow" tests/objective/test_decoder_on_cuda.py \
  tests/packing/test_block_mask.py tests/packing/test_recompilation.py tests/replay tests/recipes/test_precision.py
check step_1b "${LIMIT_STEP:-900}" "$python" -m tests.benchmarks utilisation memory --output "$out/step_1b"
check bfloat16 "${LIMIT_BFLOAT16:-600}" "$python" -m tests.benchmarks precision --output "$out/bfloat16"
check bench "${LIMIT_BENCH:-1800}" "$python" -m tests.benchmarks --output "$out/bench"
# Seed by seed, until the time is up; started again, it goes on.
check matched_compute "${LIMIT_STUDY:-14400}" "$python" -m erjepa.experiment run matched_compute \
  model=smollm2_135m nproc_per_node=1 "devices=[0]" "output_dir=$out/matched_compute"
check report 300 "$python" -m erjepa.experiment report "$out/matched_compute"
exit $failed
