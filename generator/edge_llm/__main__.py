# SPDX-License-Identifier: Apache-2.0
"""Makes Edge-LLM artifacts from a finished bundle: `python -m generator.edge_llm --bundle DIR --out DIR [PATTERN ...]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from generator import cabi
from generator.edge_llm.make import chosen, make, read_bundle
from generator.edge_llm.sources import EdgeError


def main(arguments: list[str] | None = None) -> int:
    """The command's exit status: 0 when everything was made, 1 with the reason on standard error when not."""
    parser = argparse.ArgumentParser(prog="python -m generator.edge_llm", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="the folder of a bundle")
    parser.add_argument("--out", type=Path, help="folder for the tarballs")
    parser.add_argument("--list", action="store_true", help="name the artifacts that can be made, and make none")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="artifacts to make, such as cutedsl_aarch64_* (default: all)")
    options = parser.parse_args(arguments)
    try:
        if options.list:
            print("\n".join(combination.tarball for combination in chosen(read_bundle(options.bundle), options.patterns)))
            return 0
        if options.out is None:
            parser.error("--out is needed")
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            for path in make(options.bundle, options.out, work / "objects", cabi.Zig(work / "zig"), options.patterns):
                print(path)
    except (EdgeError, cabi.RenderError, cabi.CompileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
