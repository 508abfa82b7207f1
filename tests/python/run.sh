#!/bin/bash
# In: liblatentkv.so, a python3. Out: the package's tests, pytest's exit status; 77 (skipped) where
# none of that python3, a venv in .cache/python-venv and the system's has numpy and pytest.
set -euo pipefail
library=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
for python in "$root/.cache/python-venv/bin/python" "$2" /usr/bin/python3; do
    "$python" -c 'import numpy, pytest' 2>/dev/null || continue
    export LATENTKV_LIBRARY=$library PYTHONPATH=$root/bindings/python PYTHONDONTWRITEBYTECODE=1
    exec "$python" -m pytest -q -p no:cacheprovider "$root/bindings/python" "$root/tests/python"
done
echo "skipped: no python3 with numpy and pytest (bindings/python/README.md says how to get a venv)"
exit 77
