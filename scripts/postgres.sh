#!/usr/bin/env bash
# Sees to a PostgreSQL server for the tests: one that is installed, else Debian's, unpacked into .venv/postgres. That
# needs no rights, starts nothing and changes nothing outside .venv. Returns at once when a server is there.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.venv/postgres
oldest=15 # MERGE came with it

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

has_server() {
  local place
  for place in "$target"/usr/lib/postgresql/*/bin /usr/lib/postgresql/*/bin; do
    if [ -x "$place/initdb" ] && [ -x "$place/postgres" ]; then return; fi
  done
  command -v initdb >/dev/null && command -v postgres >/dev/null
}

if has_server; then exit 0; fi
for tool in apt-get apt-cache dpkg; do
  command -v "$tool" >/dev/null ||
    fail "the tests need a PostgreSQL server, version $oldest or newer, and none is installed" \
      "install it so that initdb and postgres are on the PATH, and run this again"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/debs"
# Lists of our own: the system's may be missing, and only root could fetch them.
options=(-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work" -o Debug::NoLocking=1)
if [ "$(id -u)" = 0 ]; then options+=(-o APT::Sandbox::User=root); fi

say "no PostgreSQL server found: unpacking Debian's into $target"
apt-get "${options[@]}" -qq update || fail "apt-get update failed (see above)"
version=$(apt-cache "${options[@]}" search --names-only '^postgresql-[0-9]+$' | sed -E 's/^postgresql-([0-9]+) .*/\1/' |
  sort -n | tail -n 1)
if [ "${version:-0}" -lt "$oldest" ]; then
  fail "Debian's PostgreSQL is ${version:-missing} here; the tests need $oldest or newer: install one and run this again"
fi
# With the libraries that are missing on this machine. What only a server for good needs is left out: its users,
# certificates and start-up scripts, and the compiler for queries, which is larger than all the rest.
packages=$(apt-get "${options[@]}" -qq --print-uris --no-install-recommends install -y "postgresql-$version" |
  sed -nE "s/^'[^']*' ([^_]+)_.*/\1/p" |
  grep -vE '^(libllvm.*|.*perl.*|postgresql(-client)?-common|ssl-cert|netbase|ucf|locales|tzdata|lsb-base|debconf)$') ||
  fail "apt-get cannot tell which packages PostgreSQL needs here (see above); install PostgreSQL and run this again"
# shellcheck disable=SC2086 # one word a package
(cd "$work/debs" && apt-get "${options[@]}" -qq download $packages) || fail "the download failed (see above)"
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/tree"; done
mkdir -p .venv
rm -rf "$target"
mv "$work/tree" "$target"
has_server || fail "Debian's packages ($packages) hold no server; install PostgreSQL and run this again"
say "PostgreSQL $version for the tests: $target"
