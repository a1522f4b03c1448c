# SPDX-License-Identifier: Apache-2.0
"""`python -m fmhaforge` is the command `fmhaforge`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
