#!/usr/bin/env bash
# Set up if needed, lint, then all tests: bash tools/run_tests.sh [arguments of pytest]
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
source tools/setup_env.sh || exit
"$PYTHON" -m ruff check . && "$PYTHON" -m ruff format --check . || exit
# Two at once, module by module: most of them wait for processes that they start.
exec "$PYTHON" -m pytest -n 2 --dist loadscope --no-loadscope-reorder "$@"
