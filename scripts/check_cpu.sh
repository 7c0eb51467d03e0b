#!/usr/bin/env bash
# Checks a machine without a GPU, in minutes:
#   bash scripts/check_cpu.sh [OUT]     default: ./checks; needs the project installed with [dev]
set -uo pipefail
out=${1:-$(dirname "$0")/../checks}
out=$(mkdir -p "$out" && cd "$out" && pwd)
cd "$(dirname "$0")/.."
source scripts/checks.sh
python=${PYTHON:-python}

rm -rf "$out/run" "$out/results.txt"
check train 300 tune run erjepa_recipe --config tiny_synth "output_dir=$out/run" dataset.size=200 stop.steps=4
check score 300 tune run erjepa_eval --config tiny_synth "output_dir=$out/run" dataset.size=200 eval_dataset.size=40
check tests "${LIMIT_TESTS:-900}" "$python" -m pytest -m "not slow" tests/objective tests/packing tests/replay
exit $failed
