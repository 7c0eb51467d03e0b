#!/usr/bin/env bash
# Collects what a machine without a network needs: this clone, wheels of its dependencies, and files:
#   bash scripts/bundle.sh FOLDER [PATH...]
# A PATH is a base model or a dataset, which install.sh puts at the same absolute path. Set before `bash`:
#   PYTHON=python3.12                 Python of the version that the other machine has (python)
#   PLATFORM=manylinux_2_28_x86_64    glibc and architecture of the other machine
#   WITHOUT='torch|triton|nvidia-.*'  packages to omit, as a regular expression
#   PART_SIZE=60M                     largest size of a part
set -euo pipefail
fail() {
  echo "bundle.sh: error: $*" >&2
  exit 2
}
[ $# -gt 0 ] || fail "usage: bundle.sh FOLDER [PATH...]"
python=${PYTHON:-python}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ ${PLATFORM:=manylinux_2_28_x86_64} =~ ^manylinux_2_([0-9]+)_(.+)$ ]] \
  || fail "PLATFORM=$PLATFORM: expected manylinux_2_GLIBC_MACHINE; \`ldd --version\` tells a machine's glibc"
glibc=${BASH_REMATCH[1]} machine=${BASH_REMATCH[2]}
split --bytes="${PART_SIZE:=60M}" /dev/null # fails early on an invalid size
paths=()
for path in "${@:2}"; do paths+=("$(realpath -e -s "$path")"); done

mkdir -p "$1"
output=$(cd "$1" && pwd)
[ -z "$(ls -A "$output")" ] || fail "$output is not empty; choose another folder"
scratch=$(mktemp -d -p "$output" .XXXXXX) # its disk needs the space for the parts anyway
trap 'rm -rf "$scratch"' EXIT
cd "$(dirname "$0")/.."
cp scripts/install.sh "$output"
mkdir "$scratch/project"
{
  git ls-files -z
  git ls-files -z --others --exclude-standard -- .ci configs docs erjepa recipes scripts tests
} | tar -c --null --ignore-failed-read -T - | tar -x -C "$scratch/project"

# pip takes the wheels of the given platforms alone, so name all older ones, the newest first.
target=(--only-binary=:all:)
for ((minor = glibc; minor > 4; minor--)); do target+=("--platform=manylinux_2_${minor}_$machine"); done
target+=("--platform=manylinux2014_$machine" "--platform=manylinux2010_$machine" "--platform=manylinux1_$machine")
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$scratch/wheels" "$scratch/project"
wheel=("$scratch"/wheels/*.whl)
"$python" -m pip install --quiet --dry-run --ignore-installed --report "$scratch/report" --target "$scratch" \
  "${target[@]}" "${wheel[0]}[dev]"
"$python" - "$scratch/report" "erjepa|${WITHOUT:=}" >"$scratch/packages" <<'PYTHON'
import json, re, sys
for package in json.load(open(sys.argv[1]))["install"]:
    about = package["metadata"]
    if not re.fullmatch(sys.argv[2], re.sub("[-_.]+", "-", about["name"]).lower()):
        print(f"{about['name']}=={about['version']}")
PYTHON
"$python" -m pip download --quiet --no-deps --dest "$scratch/wheels" "${target[@]}" -r "$scratch/packages"

# -h follows links, such as those of the hub's cache.
tar -chP --transform 's,^/,files/,' -C "$scratch" project wheels "${paths[@]}" \
  | split -d -b "$PART_SIZE" - "$output/part_"
(cd "$output" && sha256sum part_* >SHA256SUMS)
printf '%s=%q\n' PYTHON_VERSION "$version" MACHINE "$machine" GLIBC "$glibc" WITHOUT "$WITHOUT" >"$output/bundle.env"
echo "$(wc -l <"$scratch/packages") packages and ${#paths[@]} paths. There: bash $(basename "$output")/install.sh"
