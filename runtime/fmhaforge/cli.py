# SPDX-License-Identifier: Apache-2.0
"""The command `fmhaforge`. Exit status: 0 yes or passed, 1 no or failed, 2 bad usage or the command could not be carried out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import commands
from .dtypes import INT_MAX
from .errors import FmhaForgeError
from .locate import VARIABLE
from .query import ROUTE_CUBIN, ROUTES
from .selftest_faults import FAULTS
from .version import __version__

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.function(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except (FmhaForgeError, commands.UsageError) as error:
        print(f"fmhaforge {options.command}: {error}", file=sys.stderr)
        return USAGE_ERROR


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fmhaforge", description="Ask a bundle of attention kernels what it can do, check it, and run it.",
                     epilog="Exit status: 0 yes or passed, 1 no or failed, 2 bad usage or not carried out.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fmhaforge {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_list(subparsers)
    _add_query(subparsers, "query", "say whether a request is served, by which variants, or why not", commands.query)
    _add_query(subparsers, "explain", "say for each variant why it was or was not taken for a request", commands.explain)
    _command(subparsers, "verify", "check every file of a bundle", commands.verify)
    _command(subparsers, "doctor", "look at driver, devices and installed packages", commands.doctor)
    _add_run(subparsers)
    _add_diff(subparsers)
    return parser


def _command(subparsers, name: str, text: str, function, bundle: bool = True) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    if bundle:
        parser.add_argument("--bundle", metavar="DIR", help=f"folder of the bundle (default: ${VARIABLE}, else the newest in ./dist)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(function=function)
    return parser


def _from_zero(text: str) -> int:
    return _at_least(0, text)


def _from_one(text: str) -> int:
    return _at_least(1, text)


def _at_least(minimum: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, not {text!r}") from None
    if not minimum <= number <= INT_MAX:
        raise argparse.ArgumentTypeError(f"must be in {minimum} .. {INT_MAX}, not {number}")
    return number


def _add_list(subparsers) -> None:
    parser = _command(subparsers, "list", "list the rows of a bundle: variant by SM, with resources and digests", commands.list_rows)
    parser.add_argument("--op", help="only this operation")
    parser.add_argument("--variant", metavar="PATTERN", help="only variants whose name matches, such as 'fmha_v2_d64*'")
    parser.add_argument("--sm", type=int, help="only rows built for this SM")
    parser.add_argument("--plans", action="store_true", help="with --json: include the launch plans")


def _add_query(subparsers, name: str, text: str, function) -> None:
    parser = _command(subparsers, name, text, function)
    parser.add_argument("--op", required=True, help="operation: llm, paged, paged_ragged, padding, vision_block or vit")
    parser.add_argument("--head-dim", type=int, required=True, help="elements of a head")
    parser.add_argument("--sm", type=int, required=True, help="compute capability of the device as a number: 87 for 8.7")
    parser.add_argument("--heads-q", type=int, help="query heads")
    parser.add_argument("--heads-kv", type=int, help="key/value heads")
    parser.add_argument("--dtype", default="float16", help="element type (default: float16)")
    parser.add_argument("--mask", help="causal, sliding_causal, padding, vision_block or bidirectional (default: the operation's only one)")
    parser.add_argument("--batch", type=int, help="number of sequences, if known")
    parser.add_argument("--seqlen-q", type=int, help="query length, if known; decides between small and large tiles")
    parser.add_argument("--no-small-d64", action="store_true", help="never take the small d64 tile")
    _add_row_options(parser)


def _add_row_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--route", choices=ROUTES, default=ROUTE_CUBIN, help="load the cubin, or have the driver assemble the PTX")
    parser.add_argument("--row-sm", type=int, help="only rows built for this SM")
    parser.add_argument("--family", help="only rows of this kernel family")
    parser.add_argument("--checked", action="store_true", help="take the checked variants")


def _add_run(subparsers) -> None:
    parser = _command(subparsers, "run", "run random cases on the GPU and compare them with float64", commands.run)
    parser.add_argument("--op", help="only this operation (default: all)")
    parser.add_argument("--head-dim", type=int, help="only this head_dim (default: all)")
    parser.add_argument("--mask", help="only this mask (default: all)")
    parser.add_argument("--heads-q", type=_from_one, default=4, help="query heads (default: 4)")
    parser.add_argument("--heads-kv", type=_from_one, default=2, help="key/value heads (default: 2)")
    parser.add_argument("--batch", type=_from_one, default=2, help="number of sequences (default: 2)")
    parser.add_argument("--seqlen-q", type=_from_zero, default=24, help="query length (default: 24)")
    parser.add_argument("--seqlen-kv", type=_from_zero, default=150, help="key/value length, more than a tile and a page (default: 150)")
    parser.add_argument("--window", type=int, default=7, help="keys left of the diagonal for sliding masks (default: 7)")
    parser.add_argument("--cases", type=_from_one, default=1, help="cases of each kind (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case (default: 0)")
    parser.add_argument("--device", type=_from_zero, default=0, help="CUDA device (default: 0)")
    parser.add_argument("--fault", choices=FAULTS, help="with --checked: plant this fault in the last sequence, and expect its report")
    _add_row_options(parser)


def _add_diff(subparsers) -> None:
    parser = _command(subparsers, "diff", "say in what two bundles differ", commands.diff_bundles, bundle=False)
    parser.add_argument("old", help="folder of a bundle")
    parser.add_argument("new", help="folder of another bundle")
