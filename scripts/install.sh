#!/usr/bin/env bash
# Installs this bundle without a network, puts its files where the configs expect them, and runs the
# checks of the machine:
#   bash install.sh [FOLDER]           default: ./erjepa beside this script
#   PYTHON=/path/to/python bash install.sh FOLDER
#   CHECKS=none bash install.sh FOLDER
#   DATA=/path/to/nl_rx bash install.sh FOLDER    which the check `study` of a GPU needs
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/bundle.env" # PYTHON_VERSION, MACHINE, GLIBC, WITHOUT
target=${1:-$here/erjepa}
python=${PYTHON:-python$PYTHON_VERSION}
fail() {
  echo "install.sh: error: $*" >&2
  exit 2
}

command -v "$python" >/dev/null || fail "no $python here; set PYTHON to a Python $PYTHON_VERSION"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = "$PYTHON_VERSION" ] || fail "the bundle is for Python $PYTHON_VERSION; $python is $version"
[ "$(uname -m)" = "$MACHINE" ] || fail "the bundle is for $MACHINE; this machine is $(uname -m)"
glibc=$("$python" -c 'import platform; print(platform.libc_ver()[1].split(".")[-1] or 0)')
[ "$glibc" -ge "$GLIBC" ] || fail "the bundle is for glibc 2.$GLIBC or newer; here it is 2.$glibc"
(cd "$here" && sha256sum --check --quiet SHA256SUMS) || fail "a part is missing or damaged; copy it again"

mkdir -p "$target"
target=$(cd "$target" && pwd)
if compgen -G "$target/wheels/erjepa-*.whl" >/dev/null; then # of an earlier bundle
  rm -rf "$target/wheels" "$target/files" "$target"/project/{.ci,configs,docs,erjepa,recipes,scripts,tests}
fi
(cd "$here" && cut -d ' ' -f 3 SHA256SUMS | xargs cat) | tar -x -C "$target"
if [ -d "$target/files" ]; then
  (cd "$target/files" && find . -type f) | while IFS= read -r file; do
    there=${file#.}
    [ -e "$there" ] && continue
    mkdir -p "$(dirname "$there")" || fail "cannot create $(dirname "$there"), where a config expects files"
    # In one piece: what exists is kept when the bundle is installed again.
    ln "$target/files/$file" "$there" 2>/dev/null && continue
    cp "$target/files/$file" "$there.part" || fail "cannot write $there"
    mv "$there.part" "$there"
  done
fi

"$python" -m venv --clear "$target/venv"
if [ -n "$WITHOUT" ]; then # packages of $python come last in the search path
  "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
    >"$(echo "$target"/venv/lib/python*/site-packages)/of_the_machine.pth"
fi
export PATH="$target/venv/bin:$PATH" PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$target/venv/bin/python" -m pip install --quiet --no-deps --no-cache-dir "$target"/wheels/*.whl
"$target/venv/bin/python" -m pip check || echo "install.sh: pip check found the problems above" >&2
echo "installed; source $target/venv/bin/activate, and see $target/project"

case ${CHECKS:-auto} in
  none) ;;
  *)
    cd "$target/project"
    export PYTHON="$target/venv/bin/python"
    if "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
      LIMIT_STUDY=${LIMIT_STUDY:-14400} bash scripts/check_gpu.sh all "$target/checks"
    else
      bash scripts/check_cpu.sh "$target/checks"
    fi
    ;;
esac
