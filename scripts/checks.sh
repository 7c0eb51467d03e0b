# Sourced by check_cpu.sh and check_gpu.sh. `check NAME SECONDS COMMAND...` runs a command with a time
# limit, writes its output to OUT/NAME.log and appends a line with its result to OUT/results.txt.
failed=0

check() {
  local name=$1 limit=$2 start=$SECONDS code=0 how=passed
  shift 2
  timeout --kill-after=30 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  case $code in
    0) ;;
    124 | 137)
      how="killed"
      ((SECONDS - start < limit)) || how="stopped at its limit"
      [ "$name/$how" = "study/stopped at its limit" ] || failed=1 # started again, it continues
      ;;
    *) how="failed ($code)" failed=1 ;;
  esac
  echo "$name: $how after $((SECONDS - start)) s of $limit; $out/$name.log" | tee -a "$out/results.txt"
}
