# SPDX-License-Identifier: Apache-2.0
"""The build-time half of FMHA Forge: never shipped, always run from the source tree.

The description layer (`manifest`, `families`, `arch`, `operations`, `plan`) imports neither cutlass, CUDA nor SCons.
The generator uses the runtime that stands beside it in the same tree, so its folder is put in front of any installed one.
"""

import sys
from pathlib import Path

RUNTIME_PATH = Path(__file__).resolve().parent.parent / "runtime"

if str(RUNTIME_PATH) not in sys.path:
    sys.path.insert(0, str(RUNTIME_PATH))
