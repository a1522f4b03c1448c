#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Finds a Python that can run the build and lets it make .venv (tools/setup_venv.py). Run from the root of the tree.
set -u

probe='import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
# PYTHON is one command, whose path may hold blanks.
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11 python3.10; fi
for candidate do
  if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$probe" >/dev/null 2>&1; then
    exec "$candidate" tools/setup_venv.py .venv requirements.lock
  fi
done
echo "setup: no usable Python on PATH. The build needs Python 3.10, 3.11, 3.12 or 3.13 with its venv and ensurepip modules
(Debian and Ubuntu: apt-get install python3-venv). To name one: make bundle PYTHON=/path/to/python3" >&2
exit 1
