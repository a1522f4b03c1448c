# SPDX-License-Identifier: Apache-2.0
"""Which rows serve a request, and if none does, why. Query, preflight and launch all go through `select`.

A request is walked field by field in a fixed order. The first field that no row satisfies is the reason of a refusal, and the
rows that satisfied everything before it are the ones to look among for the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import launch, sentences
from .metadata import Metadata, Operation, Row, Select

ROUTE_CUBIN = "cubin"
ROUTE_PTX = "driver-ptx"
ROUTES = (ROUTE_CUBIN, ROUTE_PTX)

NEAREST = 3
"""How many near rows a refusal names."""

UP_TO = "up to"
"""The field of a near row whose selection rule does not hold; its value is the longest query that the rule takes."""


@dataclass(frozen=True)
class Query:
    """A request. None means "not known"; a row is then offered only if it serves every value.

    * `operations`: the names of the operations that may serve it; the mask picks among them
    * `known`: the argument values that are known, by ABI name (`num_q_heads`, `seqlen_q`, `batch`, ...)
    * `flags`: the selection flags that are known (`use_small_d64`)
    * `family`, `row_sm`: restrict the rows to one kernel family or to rows built for one SM
    * `route`: `cubin`, or `driver-ptx` to have the driver assemble the row's PTX (to validate the PTX itself)
    """

    operations: tuple[str, ...]
    head_dim: int
    sm: int
    dtype: str = "float16"
    mask: str | None = None
    known: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    checked: bool = False
    family: str | None = None
    row_sm: int | None = None
    route: str = ROUTE_CUBIN


@dataclass(frozen=True)
class Near:
    """A row that would serve the request if the failing field were different: `value` is what it has there."""

    row: Row
    field: str
    value: object

    def __str__(self) -> str:
        return f"{self.row.variant} ({self.field} {self.value})"


@dataclass(frozen=True)
class Support:
    """The answer to a query; true exactly when load and launch would succeed.

    `rows` are the rows that may serve it (one if everything that the selection rules ask for is known), best first. Otherwise
    `field` is the first failing field, `reason` says it in a sentence and `nearest` lists near rows.
    """

    rows: tuple[Row, ...] = ()
    field: str | None = None
    reason: str = ""
    nearest: tuple[Near, ...] = ()

    def __bool__(self) -> bool:
        return self.field is None

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the variants that may serve the request."""
        return tuple(dict.fromkeys(row.variant for row in self.rows))


@dataclass(frozen=True)
class Verdict:
    """What became of one variant: `field` and `reason` say why it was passed over, or are None and "" for a chosen one."""

    variant: str
    row: Row
    field: str | None
    reason: str


@dataclass(frozen=True)
class _Step:
    """One field of the walk: what the request wants, what a row has, and whether that will do."""

    field: str
    wanted: object
    have: Callable[[Row], object]
    accepts: Callable[[object], bool]


def select(metadata: Metadata, query: Query) -> Support:
    """The rows that serve `query`, or the reason why none does."""
    rows: Sequence[Row] = metadata.rows
    for step in _steps(metadata, query):
        left = [row for row in rows if step.accepts(step.have(row))]
        if not left:
            return _refusal(step, rows)
        rows = left
    problem = request_problem(metadata.operations[rows[0].operation], query.known)
    if problem:
        return Support(field=problem[0], reason=f"{problem[0]}: {problem[1]}")
    return _among(metadata, query, _best_sm(metadata, query, rows))


def explain(metadata: Metadata, query: Query) -> tuple[Verdict, ...]:
    """One verdict for every variant of the bundle, in the manifest's order."""
    chosen = select(metadata, query)
    verdicts = []
    for variant in dict.fromkeys(row.variant for row in metadata.rows):
        rows = [row for row in metadata.rows if row.variant == variant]
        verdicts.append(_verdict(metadata, query, variant, rows, chosen))
    return tuple(verdicts)


def request_problem(operation: Operation, known: Mapping[str, int]) -> tuple[str, str] | None:
    """(argument, what is wrong) for the first known value that the operation's own limits or checks refuse."""
    for name, value in known.items():
        argument = operation.arguments.get(name)
        if argument is None:
            continue
        if argument.minimum is not None and value < argument.minimum:
            return name, sentences.BELOW % (value, argument.minimum, argument.minimum)
        if argument.maximum is not None and value > argument.maximum:
            return name, sentences.ABOVE % (value, argument.maximum, argument.maximum)
        if value % argument.multiple_of:
            return name, sentences.NOT_A_MULTIPLE % (value, argument.multiple_of)
    for check in operation.checks:
        if check.names() <= known.keys():
            failure = check.failure(known)
            if failure:
                return min(check.names(), key=list(known).index), failure
    return None


def row_sms(metadata: Metadata, query: Query) -> tuple[int, ...]:
    """The SMs of rows that may serve the device, best first."""
    served = metadata.arch_table.get(query.sm, ())
    if query.route == ROUTE_PTX:
        served = tuple(dict.fromkeys((*served, *(row.sm for row in metadata.rows))))
    return tuple(sm for sm in served if query.row_sm in (None, sm))


# -- the walk ---------------------------------------------------------------------------------------------------------------


def _steps(metadata: Metadata, query: Query) -> Iterable[_Step]:
    yield _equal("operation", query.operations)
    if query.mask is not None:
        yield _equal("mask", (query.mask,))
    yield _equal("dtype", (query.dtype,))
    yield _equal("head_dim", (query.head_dim,))
    yield _equal("checked", (query.checked,))
    if query.family is not None:
        yield _equal("family", (query.family,))
    if query.route == ROUTE_PTX:
        portable = tuple(name for name in metadata.families if name not in metadata.exact_families)
        yield _equal("family", portable)
    if query.row_sm is not None:
        yield _Step("row_sm", query.row_sm, _sm_of, query.row_sm.__eq__)
    sms = row_sms(metadata, query)
    exact = metadata.exact_families

    def serves(have: object) -> bool:
        sm, family = have  # type: ignore[misc]
        return sm in sms and (family not in exact or sm == query.sm)
    yield _Step("sm", query.sm, lambda row: (row.sm, row.family), serves)


def _sm_of(row: Row) -> object:
    return row.sm


def _equal(name: str, wanted: tuple) -> _Step:
    return _Step(name, wanted[0] if len(wanted) == 1 else wanted, lambda row: getattr(row, name), lambda have: have in wanted)


def _best_sm(metadata: Metadata, query: Query, rows: Sequence[Row]) -> list[Row]:
    """The rows of the first SM in the device's order that has any."""
    first = next(sm for sm in row_sms(metadata, query) if any(row.sm == sm for row in rows))
    return [row for row in rows if row.sm == first]


def _among(metadata: Metadata, query: Query, rows: list[Row]) -> Support:
    """Applies selection rules, then the limits of the device and of the launch, to rows that differ in nothing else."""
    operation = metadata.operations[rows[0].operation]
    possible = _possible(rows, query.known.get(operation.seqlen_q_argument), query.flags)
    if not possible:
        return _rules_refuse(rows, operation, query)
    for row in possible:
        limit = metadata.targets[query.sm].smem_limit if query.sm in metadata.targets else None
        used = row.smem_bytes + row.static_smem_bytes
        if limit is not None and used > limit:
            return Support(field="smem_bytes", reason=sentences.SMEM % (row.variant, row.sm, used, query.sm, limit))
        problem = launch.compiled(row.plan).size_problem(query.known)
        if problem:
            return Support(field=problem[0], reason=f"{problem[0]}: {problem[1]}")
    chosen = tuple(possible)
    return Support(chosen, reason="served by " + " or ".join(dict.fromkeys(row.variant for row in chosen)))


def _possible(rows: list[Row], seqlen_q: int | None, flags: Mapping[str, bool]) -> list[Row]:
    """Rows in the order of preference, up to and including the first that surely holds."""
    ruled = [row for row in rows if row.select is not None]
    found = []
    for row in ruled + [row for row in rows if row.select is None]:
        holds = _holds(row, seqlen_q, flags)
        if holds is not False:
            found.append(row)
        if holds is True:
            break
    return found


def _holds(row: Row, seqlen_q: int | None, flags: Mapping[str, bool]) -> bool | None:
    """Whether the row's rule holds; None when that depends on something unknown."""
    rule = row.select
    if rule is None:
        return True
    short = None if seqlen_q is None else seqlen_q <= rule.seqlen_q_at_most
    flagged = True if rule.only_if is None else flags.get(rule.only_if)
    if short is False or flagged is False:
        return False
    return None if short is None or flagged is None else True


def _rules_refuse(rows: list[Row], operation: Operation, query: Query) -> Support:
    argument = operation.seqlen_q_argument
    words = "; ".join(_rule(row.variant, row.select, argument, query.flags) for row in rows if row.select)
    return Support(field=argument, reason=_no_rule(argument, query) + words + sentences.NO_RULE_REMEDY,
                   nearest=tuple(Near(row, UP_TO, row.select.seqlen_q_at_most) for row in rows if row.select))


def _no_rule(argument: str, query: Query) -> str:
    seqlen_q = query.known.get(argument)
    return sentences.NO_RULE_UNKNOWN % argument if seqlen_q is None else sentences.NO_RULE % (argument, seqlen_q)


def _rule(who: str, rule: Select, argument: str, flags: Mapping[str, bool]) -> str:
    """What a variant's rule asks for."""
    asked = sentences.RULE % (who, argument, rule.seqlen_q_at_most)
    if rule.only_if is None:
        return asked
    return asked + (sentences.RULE_FLAG if flags.get(rule.only_if) is not False else sentences.RULE_FLAG_OFF) % rule.only_if


# -- refusals ---------------------------------------------------------------------------------------------------------------


def _refusal(step: _Step, rows: Sequence[Row]) -> Support:
    if step.field == "sm":
        return _sm_refusal(step, rows)
    values = sorted({step.have(row) for row in rows}, key=lambda value: (isinstance(value, str), value))
    nearest = _nearest(step, rows, lambda row: step.have(row))
    wanted = " or ".join(map(str, step.wanted)) if isinstance(step.wanted, tuple) else str(step.wanted)
    reason = f"{step.field} {wanted} is not served (there {'is' if len(values) == 1 else 'are'} {_listed(values)})"
    return Support(field=step.field, reason=_with_nearest(reason, nearest), nearest=nearest)


def _sm_refusal(step: _Step, rows: Sequence[Row]) -> Support:
    sms = sorted({row.sm for row in rows})
    nearest = _nearest(step, rows, lambda row: row.sm)
    reason = f"sm {step.wanted} is not served: the matching rows are built for SM {_listed(sms)}, and none of them runs there"
    return Support(field="sm", reason=_with_nearest(reason, nearest), nearest=nearest)


def _with_nearest(reason: str, nearest: Sequence[Near]) -> str:
    return reason + (f"; nearest: {', '.join(map(str, nearest))}" if nearest else "")


def _nearest(step: _Step, rows: Sequence[Row], value: Callable[[Row], object]) -> tuple[Near, ...]:
    """Up to NEAREST rows, one per value of the field, closest first (numbers by distance, words in the manifest's order)."""
    by_value: dict[object, Row] = {}
    for row in rows:
        by_value.setdefault(value(row), row)
    found = [Near(row, step.field, have) for have, row in by_value.items()]
    if type(step.wanted) is int:
        found.sort(key=lambda near: abs(int(near.value) - int(step.wanted)))  # type: ignore[call-overload]
    return tuple(found[:NEAREST])


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "none"


def _verdict(metadata: Metadata, query: Query, variant: str, rows: Sequence[Row], chosen: Support) -> Verdict:
    picked = [row for row in chosen.rows if row.variant == variant]
    if picked:
        return Verdict(variant, picked[0], None, "")
    alone = select(replace(metadata, rows=tuple(rows)), query)
    if alone.nearest and alone.nearest[0].field == UP_TO:
        row, argument = alone.nearest[0].row, alone.field or ""
        seqlen_q = query.known.get(argument)
        where = "" if seqlen_q is None else f" for {argument} {seqlen_q}"
        assert row.select is not None
        return Verdict(variant, row, argument, f"its selection rule does not hold{where}: {_rule('it', row.select, argument, query.flags)}")
    if not alone:
        return Verdict(variant, rows[0], alone.field, alone.reason)
    return Verdict(variant, alone.rows[0], "select", f"{' or '.join(chosen.variants)} goes first by its selection rule"
                   if chosen else chosen.reason)
