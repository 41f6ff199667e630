#!/bin/sh
# Finds a Python that can make the environments and hands over to setup_env.py. `PYTHON=...` chooses one.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
wanted='3.11 to 3.14'
seen=''
without_venv=''

# 0: usable; 1: another version, or does not run; 2: the right version, but its venv module is not installed
judge() {
    "$1" -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 14) else 1)' >/dev/null 2>&1 || return 1
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 || return 2
}

version_of() { "$1" --version 2>&1 | head -n 1 || true; }

stop() {
    printf '%s\n' "$@" >&2
    exit 1
}

explain_venv() {
    stop "error: $1 ($(version_of "$1")) has no venv module." \
        "  do:     install it (Debian and Ubuntu: apt-get install python3-venv), or name another Python: make PYTHON=/path/to/python3 ..."
}

if [ -n "${PYTHON:-}" ]; then
    verdict=0
    judge "$PYTHON" || verdict=$?
    [ "$verdict" -ne 2 ] || explain_venv "$PYTHON"
    [ "$verdict" -eq 0 ] || stop "error: PYTHON=$PYTHON cannot be used." \
        "  needed: Python $wanted" \
        "  found:  $(version_of "$PYTHON")"
    NEURONBENCH_PYTHON_CHOSEN=1
    export NEURONBENCH_PYTHON_CHOSEN
    exec "$PYTHON" "$here/setup_env.py" "$@"
fi

for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    verdict=0
    judge "$candidate" || verdict=$?
    case $verdict in
    0) exec "$candidate" "$here/setup_env.py" "$@" ;;
    2) without_venv=${without_venv:-$candidate} ;;
    *) seen="$seen $candidate ($(version_of "$candidate"));" ;;
    esac
done

[ -z "$without_venv" ] || explain_venv "$without_venv"
stop "error: no usable Python was found on PATH." \
    "  needed: Python $wanted" \
    "  found: ${seen:- none}" \
    "  do:     install one (Debian and Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11 ..."
