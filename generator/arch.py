# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which device can run a cubin of which SM.

An SM is written as its number: 86 is compute capability 8.6, 121 is 12.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class TargetLike(Protocol):
    """What the rules need to know of a target; `generator.manifest.Target` is one."""

    sm: int
    platform: str
    same_part: int | None


def split_sm(sm: int) -> tuple[int, int]:
    """(major, minor) of an SM number: 86 -> (8, 6), 121 -> (12, 1)."""
    return divmod(sm, 10)


def resolution_table(targets: Sequence[TargetLike], built: Iterable[int] | None = None) -> dict[int, tuple[int, ...]]:
    """Device SM -> the SMs of rows that can serve it, best first.

    `targets` are the targets of the manifest; only their SMs are served. `built` restricts the rows to these SMs (default:
    all). A device that nothing can serve is left out. Rows of an exact family serve their own SM only, whatever stands here.
    """
    available = {target.sm for target in targets} if built is None else set(built)
    unknown = available - {target.sm for target in targets}
    if unknown:
        raise ValueError(f"SM {min(unknown)} is no target of the manifest; targets are "
                         f"{', '.join(str(target.sm) for target in targets)}")
    table = {device.sm: _serving(device, targets, available) for device in targets}
    return {sm: table[sm] for sm in sorted(table) if table[sm]}


def _serving(device: TargetLike, targets: Sequence[TargetLike], available: set[int]) -> tuple[int, ...]:
    order = [device.sm]
    if device.same_part is not None:
        order.append(device.same_part)
    older = [target.sm for target in targets if _is_older_minor(target, device)]
    order += sorted(older, reverse=True)
    return tuple(sm for sm in order if sm in available)


def _is_older_minor(row: TargetLike, device: TargetLike) -> bool:
    row_major, row_minor = split_sm(row.sm)
    device_major, device_minor = split_sm(device.sm)
    return (row.platform == device.platform == "desktop" and row_major == device_major and row_minor < device_minor)
