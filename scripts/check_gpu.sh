#!/usr/bin/env bash
# Checks a machine with a GPU, in parts of at most ten minutes each, without a network:
#   bash scripts/check_gpu.sh PART [OUT]     OUT: ./checks; needs the project installed with [dev]
# PART, the most valuable first:
#   first        tests on CUDA; the embedded model trained, saved, resumed and scored
#   fsdp2        full fine-tuning with FSDP2, which shards on one GPU too
#   2048, 8192   a step of Llama-3.2-1B's shape with rows of that length, with and without compile
#   memory       memory of a step, and precision of the adapters
#   ranks        losses on several GPUs and on one
#   bench        the other benchmarks
#   study        SmolLM2 at matched compute, seed by seed; start it again to resume
#   all          all of them
# OUT/PART/RESULTS.md is a table for tests/benchmarks/RESULTS.md. DEVICE=cpu SIZE=tiny tries a part
# without a GPU; LIMIT and LIMIT_STUDY set the time limit of a command in seconds. DATA is the folder
# of NL-RX for `study`, which downloads it otherwise.
set -uo pipefail
out=${2:-$(dirname "$0")/../checks}
out=$(mkdir -p "$out" && cd "$out" && pwd)
[ -z "${DATA:-}" ] || DATA=$(cd "$DATA" && pwd)
cd "$(dirname "$0")/.."
parts="first fsdp2 2048 8192 memory ranks bench study"
part=${1:-}
case " $parts all " in
  *" $part "*) ;;
  *)
    echo "usage: check_gpu.sh PART [OUT], where PART is one of: $parts all" >&2
    exit 2
    ;;
esac
source scripts/checks.sh
python=${PYTHON:-python}
export BENCHMARK_DEVICE=${DEVICE:-cuda} BENCHMARK_SIZE=${SIZE:-1b}

benchmark() {  # PART NAME...
  check "$1" "${LIMIT:-540}" "$python" -m tests.benchmarks "${@:2}" --quick --output "$out/$1"
}

run() {
  case $1 in
    first)
      if [ "$BENCHMARK_DEVICE" = cuda ]; then
        check machine 20 nvidia-smi
        check cuda_tests "${LIMIT:-330}" "$python" -m pytest -vv -n 12 -m cuda tests/objective tests/packing \
          tests/replay tests/recipes/test_on_a_gpu.py
      fi
      LIMIT=${LIMIT:-240} benchmark first start_to_end
      ;;
    fsdp2) benchmark fsdp2 full_finetuning ;;
    2048 | 8192) ROW_LENGTHS=$1 benchmark "$1" utilisation ;;
    memory) benchmark memory memory precision ;;
    ranks) benchmark ranks ranks ;;
    bench) benchmark bench packing replay generation objectives torchtune_sft ;;
    study)
      check study "${LIMIT_STUDY:-570}" "$python" -m erjepa experiment run matched_compute \
        model=smollm2_135m nproc_per_node=1 "devices=[0]" "output_dir=$out/study" \
        ${DATA:+"overrides.dataset.source=$DATA" "overrides.eval_dataset.source=$DATA"}
      check report 30 "$python" -m erjepa report "$out/study"
      ;;
  esac
}

if [ "$part" = all ]; then
  for each in $parts; do run "$each"; done
else
  run "$part"
fi
exit $failed
