# SPDX-License-Identifier: Apache-2.0
"""What the commands of the command line do. Each takes the parsed options, prints, and returns the exit status."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from . import bundle as bundles
from . import driver as drivers
from . import selftest
from .bundle import Bundle
from .diff import diff
from .doctor import PROBLEM, diagnose
from .dtypes import mask_name
from .errors import BundleError, BundleNotFoundError
from .locate import find_bundle
from .metadata import Operation
from .query import Query, Support
from .request import request
from .verify import verify as verify_bundle

YES, NO = 0, 1

MOST_ELEMENTS = 1 << 24
"""Most elements of q, k and v together that `run` makes a case of."""

LIST_COLUMNS = ("variant", "sm", "operation", "mask", "head_dim", "kv_layout", "dtype", "family", "registers", "spill_bytes",
                "smem_bytes", "cubin_bytes", "validated")


class UsageError(Exception):
    """The options ask for something that does not exist; the message says what does."""


def list_rows(options: argparse.Namespace) -> int:
    """`fmhaforge list`"""
    bundle = _open(options)
    if options.plans and not options.json:
        raise UsageError("--plans is for --json; give that too")
    if options.op is not None:
        _operation(options, bundle)
    rows = [row.raw for row in bundle.metadata.rows
            if options.op in (None, row.operation) and options.sm in (None, row.sm)
            and (options.variant is None or fnmatchcase(row.variant, options.variant))]
    if options.json:
        _print_json([{key: value for key, value in row.items() if key != "plan" or options.plans} for row in rows])
    else:
        _print_table(LIST_COLUMNS, ([row[column] for column in LIST_COLUMNS] for row in rows))
        print(f"{len(rows)} rows")
    return YES if rows else NO


def query(options: argparse.Namespace) -> int:
    """`fmhaforge query`"""
    bundle = _open(options)
    support = bundle.query(_query(options, bundle))
    if options.json:
        _print_json(_support_json(support))
    elif support:
        print(f"yes: {', '.join(f'{row.variant} (cubin of SM {row.sm})' for row in support.rows)}")
    else:
        print(f"no: {support.reason}")
    return YES if support else NO


def explain(options: argparse.Namespace) -> int:
    """`fmhaforge explain`"""
    bundle = _open(options)
    request = _query(options, bundle)
    support, verdicts = bundle.query(request), bundle.explain(request)
    if options.json:
        _print_json({**_support_json(support), "verdicts": [
            {"variant": v.variant, "sm": v.row.sm, "taken": v.field is None, "field": v.field, "reason": v.reason} for v in verdicts]})
    else:
        _print_table(("variant", "verdict", "reason"),
                     ((v.variant, "taken" if v.field is None else v.field, v.reason.split("; nearest:")[0]) for v in verdicts))
        print(f"yes: {', '.join(support.variants)}" if support else f"no: {support.reason}")
    return YES if support else NO


def verify(options: argparse.Namespace) -> int:
    """`fmhaforge verify`"""
    path = find_bundle(options.bundle)
    try:
        result = verify_bundle(bundles.open(path))
        findings = [{"file": finding.file, "reason": finding.reason} for finding in result.findings]
        summary = f"{result.rows} rows, {result.files} files, {result.size} bytes"
    except BundleNotFoundError:
        raise
    except BundleError as error:
        findings, summary = [{"file": error.path, "reason": error.reason}], "not read"
    if options.json:
        _print_json({"bundle": str(path), "ok": not findings, "summary": summary, "findings": findings})
    else:
        for finding in findings:
            print(f"{finding['file']}: {finding['reason']}")
        print(f"{path}: {'ok' if not findings else f'{len(findings)} findings'} ({summary})")
    return NO if findings else YES


def doctor(options: argparse.Namespace) -> int:
    """`fmhaforge doctor`"""
    try:
        path = find_bundle(options.bundle)
    except BundleNotFoundError:
        if options.bundle is not None:
            raise
        path = None  # none is stated, and there is none in the usual place
    bundle = None if path is None else bundles.open(path)
    notes = diagnose(drivers.default(), bundle)
    if options.json:
        _print_json([{"status": note.status, "subject": note.subject, "detail": note.detail} for note in notes])
    else:
        _print_table(("status", "subject", "detail"), ((note.status, note.subject, note.detail) for note in notes))
    return NO if any(note.status == PROBLEM for note in notes) else YES


def run(options: argparse.Namespace) -> int:
    """`fmhaforge run`"""
    _check_fault_options(options)
    bundle = _open(options)
    kinds = _kinds(options, bundle)
    _check_size(options, kinds)
    devices = bundle.driver.device_count()
    if options.device >= devices:
        raise UsageError(f"--device {options.device} does not exist; there are {devices} devices")
    outcomes = [_run_case(options, bundle, *kind, seed=options.seed + index) for kind in kinds for index in range(options.cases)]
    if options.json:
        _print_json([_outcome_json(outcome) for outcome in outcomes])
    else:
        reported = ("reported",) if options.fault else ()
        _print_table(("variant", "operation", "mask", "head_dim", "q_lens", "kv_lens", "relative error", "worst element", *reported, "result"),
                     ((o.variant, o.case.operation, o.case.mask, o.case.head_dim, o.case.q_lens, o.case.kv_lens, f"{o.relative_error:.1e}",
                       f"{o.violation:.2f} of its limit", *(_report(o) for _ in reported), _result(o)) for o in outcomes))
        passed = sum(map(bool, outcomes))
        print(f"{passed} of {len(outcomes)} passed (relative error at most {selftest.NORM_LIMIT}, elements within "
              f"{selftest.ELEMENT_LIMIT} + {selftest.ELEMENT_LIMIT} x |reference|)")
    return YES if all(outcomes) else NO


def diff_bundles(options: argparse.Namespace) -> int:
    """`fmhaforge diff`"""
    differences = diff(bundles.open(options.old), bundles.open(options.new))
    if options.json:
        _print_json([{"kind": d.kind, "place": d.place, "old": d.old, "new": d.new} for d in differences])
    else:
        for difference in differences:
            print(difference)
        print(f"{len(differences)} differences" if differences else "the bundles are equal")
    return NO if differences else YES


# -- shared -----------------------------------------------------------------------------------------------------------------


def _open(options: argparse.Namespace) -> Bundle:
    return bundles.open(find_bundle(options.bundle))


def _query(options: argparse.Namespace, bundle: Bundle) -> Query:
    operation = _operation(options, bundle)
    mask = options.mask
    if mask is None:
        if len(operation.masks) > 1:
            raise UsageError(f"--mask is needed for {options.op}: {' or '.join(operation.masks)}")
        mask = operation.masks[0]
    else:
        _check_mask(options, bundle)
    known = {"num_q_heads": options.heads_q, "num_kv_heads": options.heads_kv, "batch": options.batch,
             operation.seqlen_q_argument: options.seqlen_q}
    flags = {flag: not options.no_small_d64 for flag in operation.flags}
    return request((options.op,), options.head_dim, options.sm, options.dtype, mask, known, flags=flags,
                           **_row_options(options))


def _operation(options: argparse.Namespace, bundle: Bundle) -> Operation:
    """The operation that --op names. Raises UsageError."""
    operations = bundle.metadata.operations
    if options.op not in operations:
        raise UsageError(f"--op {options.op} does not exist; there are {', '.join(operations)}")
    return operations[options.op]


def _check_mask(options: argparse.Namespace, bundle: Bundle) -> None:
    """Raises UsageError when no operation has the mask that --mask names."""
    known = sorted({word for operation in bundle.metadata.operations.values() for word in operation.masks})
    if mask_name(options.mask) not in known:
        raise UsageError(f"--mask {options.mask} does not exist; there are {', '.join(known)}")


def _row_options(options: argparse.Namespace) -> dict[str, object]:
    return {"route": options.route, "row_sm": options.row_sm, "family": options.family, "checked": options.checked}


def _support_json(support: Support) -> dict[str, object]:
    return {
        "supported": bool(support), "field": support.field, "reason": support.reason, "variants": list(support.variants),
        "rows": [{"variant": row.variant, "sm": row.sm, "cubin": row.cubin} for row in support.rows],
        "nearest": [{"variant": near.row.variant, "sm": near.row.sm, "field": near.field, "value": near.value} for near in support.nearest],
    }


def _kinds(options: argparse.Namespace, bundle: Bundle) -> list[tuple[str, str, int]]:
    """The (operation, mask, head_dim) of the bundle that the options ask for."""
    if options.op is not None:
        _operation(options, bundle)
    if options.mask is not None:
        _check_mask(options, bundle)
    wanted = None if options.mask is None else mask_name(options.mask)
    kinds = [(row.operation, row.mask, row.head_dim) for row in bundle.metadata.rows
             if options.op in (None, row.operation) and wanted in (None, row.mask) and options.head_dim in (None, row.head_dim)
             and row.checked == options.checked]
    if not kinds:
        raise UsageError("no row of the bundle matches --op, --mask, --head-dim and --checked; see `fmhaforge list`")
    return list(dict.fromkeys(kinds))


def _run_case(options: argparse.Namespace, bundle: Bundle, operation: str, mask: str, head_dim: int, seed: int) -> selftest.Outcome:
    case = selftest.random_case(operation, mask, head_dim, seed, options.heads_q, options.heads_kv, options.batch, options.seqlen_q,
                                options.seqlen_kv, options.window)
    runner = bundle.runner(options.heads_q, options.heads_kv, head_dim, options.batch, options.seqlen_q,
                           0 if case.paged else options.seqlen_kv, device=options.device, **_row_options(options))
    return selftest.run_case(runner, bundle.driver, case, options.device, options.fault)


def _check_fault_options(options: argparse.Namespace) -> None:
    if options.fault and not options.checked:
        raise UsageError(f"--fault {options.fault} is for checked kernels to report; give --checked too")
    if options.fault and min(options.seqlen_q, options.seqlen_kv) < 1:
        raise UsageError(f"--fault {options.fault} needs a sequence with a query and a key; give --seqlen-q and --seqlen-kv at least 1")


def _check_size(options: argparse.Namespace, kinds: Sequence[tuple[str, str, int]]) -> None:
    """Raises UsageError for cases that plain Python could not hold, before any is made."""
    rows = options.batch * (options.seqlen_q * options.heads_q + options.seqlen_kv * options.heads_kv)
    largest = max(head_dim for _, _, head_dim in kinds)
    if rows * largest > MOST_ELEMENTS:
        raise UsageError(f"a case of head_dim {largest} would have {rows * largest} elements, at most {MOST_ELEMENTS} are compared on the host; "
                         "give smaller --batch, --seqlen-q, --seqlen-kv, --heads-q or --heads-kv")


def _report(outcome: selftest.Outcome) -> str:
    error = outcome.reported
    return "nothing" if error is None else f"{error.kind} batch {error.batch} entry {error.entry} value {error.value}"


def _result(outcome: selftest.Outcome) -> str:
    if not outcome.untouched:
        return "FAILED: guard bytes overwritten"
    if not outcome.report_is_right:
        planted = outcome.planted
        wanted = f"batch {planted.batch} entry {planted.entry} value {planted.value}" if planted else "nothing"
        return f"FAILED: {_report(outcome)} reported, {wanted} planted"
    return "passed" if outcome else "FAILED"


def _outcome_json(outcome: selftest.Outcome) -> dict[str, object]:
    case = outcome.case
    return {"variant": outcome.variant, "operation": case.operation, "mask": case.mask, "head_dim": case.head_dim,
            "num_q_heads": case.num_q_heads, "num_kv_heads": case.num_kv_heads, "q_lens": case.q_lens, "kv_lens": case.kv_lens,
            "window": case.window, "scale": case.scale, "seed": case.seed, "relative_error": outcome.relative_error,
            "violation": outcome.violation, "guards_intact": outcome.untouched, "passed": bool(outcome),
            "fault": outcome.planted and outcome.planted.kind, "reported": outcome.reported and {
                key: getattr(outcome.reported, key) for key in ("kind", "argument", "batch", "entry", "value", "reason")}}


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns padded to their widest cell; numbers to the right."""
    lines = [tuple(columns), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (cell.rjust(width) if cell.isdigit() else cell.ljust(width) for cell, width in zip(line, widths))
        print("  ".join(cells).rstrip())
