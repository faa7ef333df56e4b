#!/usr/bin/env bash
# Makes .venv with the locked packages, this project and, where none is installed, a Java. Run again at will:
# when nothing changed it returns at once. PYTHON=/path/to/python chooses the interpreter of a new .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$(pwd -P)
venv=.venv
stamp=$venv/.stamp
kernels=src/semistream/kernels
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONPATH PYTHONHOME || true

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

# numba and the locked packages have wheels for these versions.
suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

find_python() {
  local tried="" candidate version
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[123]*/bin/python3; do
    # A name on the PATH may be a launcher that only says what is missing: running it is the test.
    version=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
    if ! "$candidate" -c "$suits" 2>/dev/null; then
      tried+=" $candidate is $version;"
    elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      tried+=" $candidate ($version) has no venv module (Debian: apt install python${version%.*}-venv);"
    else
      python=$candidate
      return
    fi
  done
  fail "needs Python 3.11, 3.12 or 3.13, and found none that serves.${tried}" \
    "install one, or name it: make setup PYTHON=/path/to/python3.11"
}

# The stamp: the checksums of what was installed, where, and the Java that was found.
wanted() { printf '%s\n' "$top"; cksum requirements.lock requirements-java.lock pyproject.toml lab/pyproject.toml scripts/setup.sh; }

is_fresh() {
  [ -f "$stamp" ] && [ "$(sed '$d' "$stamp")" = "$(wanted)" ] && [ -x "$venv/bin/python" ] &&
    [ -x "$(tail -n 1 "$stamp")/bin/java" ]
}

make_venv() {
  if "$venv/bin/python" -c "$suits" 2>/dev/null && { [ ! -f "$stamp" ] || [ "$(head -n 1 "$stamp")" = "$top" ]; }; then
    return
  fi
  find_python
  if [ -e "$venv" ]; then say "$venv was moved, or its Python is gone or does not serve: making it anew"; fi
  say "making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

pip() {
  "$venv/bin/python" -m pip "$@" || fail "pip failed (see above); once that is solved, run this again"
}

install_packages() {
  say "installing packages (about two minutes the first time, most of it for PySpark)"
  # The build back ends are pinned too, so they come first and nothing is built with any other.
  pip install --quiet --no-deps $(grep -E '^(setuptools|hatchling|packaging|pathspec|pluggy|trove-classifiers)==' requirements.lock)
  pip install --quiet --no-deps --no-build-isolation --use-pep517 -r requirements.lock
  pip install --quiet --no-deps --no-build-isolation -e . -e lab
}

java_home() {
  "$venv/bin/python" -c 'from semistream.spark.session import find_java; print(find_java() or "")'
}

find_java() {
  java=$(java_home)
  if [ -z "$java" ]; then
    say "no Java 17 or 21 found: installing one into $venv"
    pip install --quiet --no-deps -r requirements-java.lock
    java=$(java_home)
  fi
  [ -n "$java" ] || fail "no Java 17 or 21 found. Install one, or set JAVA_HOME to it"
  say "Java for Spark: $java"
}

compile_kernels() {
  [ -f "$kernels/__main__.py" ] || return 0
  say "compiling kernels"
  "$venv/bin/python" -m semistream.kernels
}

if is_fresh; then
  if [ -n "$(find "$kernels" -name '*.py' -newer "$stamp" 2>/dev/null)" ]; then
    compile_kernels
    touch "$stamp"
  fi
  exit 0
fi
make_venv
rm -f "$stamp"
install_packages
find_java
compile_kernels
{ wanted; printf '%s\n' "$java"; } >"$stamp"
say "done"
