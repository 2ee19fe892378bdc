#!/bin/sh
# Runs its arguments with a Python that the course supports:
#     sh .ci/python.sh .ci/environment.py lab
# PYTHON, if set, decides. Otherwise an active environment's Python comes first, then the newest that is installed.

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
has_venv='import ensurepip, venv'

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON" -- "$@"
elif [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ]; then
    set -- python3 python python3.13 python3.12 python3.11 -- "$@"
else
    set -- python3.13 python3.12 python3.11 python3 python -- "$@"
fi

best='' # can make an environment
next='' # could, once its venv module is installed: environment.py says how
while [ "$1" != -- ]; do
    if [ -z "$best" ] && "$1" -c "$supported" >/dev/null 2>&1; then
        if "$1" -c "$has_venv" >/dev/null 2>&1; then best=$1; else next=${next:-$1}; fi
    fi
    shift
done
shift

if [ -z "$best$next" ]; then
    version='import sys; print("Python %d.%d" % sys.version_info[:2])'
    if [ -n "${PYTHON:-}" ]; then
        found="PYTHON=$PYTHON is $("$PYTHON" -c "$version" 2>/dev/null || echo 'not a Python that runs')"
    else
        found="this machine has $(python3 -c "$version" 2>/dev/null || echo 'no Python')"
    fi
    echo "The course needs Python 3.11, 3.12 or 3.13, but $found:" \
        "install one of these, or name it, as in: make lab PYTHON=/path/to/python3.12" >&2
    exit 1
fi
exec "${best:-$next}" "$@"
