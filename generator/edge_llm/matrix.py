# SPDX-License-Identifier: Apache-2.0
"""Which artifacts exist: host x SM (or group of SMs) x CUDA major, and the tags they go by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CUDA_MAJORS = (12, 13)

ONE_MAJOR = {101: 12, 110: 13}
"""SMs that one CUDA major only knows: 101 is CUDA 12's name of the part that CUDA 13 calls 110."""

AARCH64_ONLY = frozenset((121,))
"""Desktop SMs that no x86-64 machine has (Tegra parts are aarch64 anyway)."""

AVOIDS_BLACKWELL_FAMILY = frozenset((100, 101, 110))
"""SMs whose plain tag makes Edge-LLM 0.10.0 demand a second kernel family; they get a further tag that does not."""

MULTI_SM = ((110, 120),)
"""Groups of SMs that one artifact serves together, as in Edge-LLM after 0.10.0."""


@dataclass(frozen=True)
class Combination:
    """One artifact: its host, SMs, CUDA major and tag (also its `gpu_arch`)."""

    host: str
    sms: tuple[int, ...]
    cuda_major: int
    tag: str

    @property
    def tarball(self) -> str:
        """The file name of its tarball."""
        return f"cutedsl_{self.host}_{self.tag}_cuda{self.cuda_major}.tar.gz"


def hosts_of(sm: int, platform: str) -> tuple[str, ...]:
    """The hosts that a device of this SM sits in. `platform` is the target's."""
    return ("aarch64",) if platform == "tegra" or sm in AARCH64_ONLY else ("x86_64", "aarch64")


def tags_of(sms: Sequence[int]) -> tuple[str, ...]:
    """The tags of an artifact of these SMs, the plain one first."""
    plain = "_".join(f"sm_{sm}" for sm in sms)
    return (plain, f"{plain}_v2") if len(sms) == 1 and sms[0] in AVOIDS_BLACKWELL_FAMILY else (plain,)


def combinations(targets: Iterable[tuple[int, str]]) -> tuple[Combination, ...]:
    """Every artifact of these targets (SM, platform), sorted by host, SMs, major and tag.

    A group of MULTI_SM exists where all its SMs do, on the hosts and majors that they share.
    """
    platforms = dict(targets)
    groups = [(sm,) for sm in platforms] + [group for group in MULTI_SM if set(group) <= set(platforms)]
    found = []
    for group in groups:
        hosts = set.intersection(*(set(hosts_of(sm, platforms[sm])) for sm in group))
        majors = set.intersection(*(set((ONE_MAJOR[sm],) if sm in ONE_MAJOR else CUDA_MAJORS) for sm in group))
        found += [Combination(host, group, major, tag) for host in hosts for major in majors for tag in tags_of(group)]
    return tuple(sorted(found, key=lambda c: (c.host, c.sms, c.cuda_major, c.tag)))
