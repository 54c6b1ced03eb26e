"""How fast KV caches are moved: from a slower tier, from a pool, from another instance.

A speed belongs to a path: from which tier to which, and how near the two are. It is a setting, or
a default of ordinary machines, and outcomes correct it: by the moving mean of the time it took over
the time that the setting says.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import isfinite
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from routing.costs import Costs
from routing.estimates.accuracy import is_time

KV_BYTES_PER_TOKEN: Final = 320 * 1024
"""Of LLaMA3-70B: 2 x 80 layers x 8 heads x 128 x 2 bytes."""

_STEP: Final = 0.1
_RATIO_LOW: Final = 0.2
_RATIO_HIGH: Final = 5.0
_TELLING: Final = 0.001
"""Below so many seconds, by the setting, a time says nothing of a speed."""


class Tier(StrEnum):
    """Where KV caches are."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    POOL = "pool"


class LinkClass(StrEnum):
    """How near two instances are."""

    HOST = "host"
    RACK = "rack"
    ZONE = "zone"
    OTHER = "other"


class Path(NamedTuple):
    """From a tier to a tier, and how near these are."""

    source: Tier
    target: Tier
    link: LinkClass


def fetch_path(link: LinkClass) -> Path:
    """From the GPU of one instance to that of another."""
    return Path(Tier.GPU, Tier.GPU, link)


def pool_path(link: LinkClass) -> Path:
    """From a shared pool to a GPU."""
    return Path(Tier.POOL, Tier.GPU, link)


LOAD: Final = Path(Tier.CPU, Tier.GPU, LinkClass.HOST)
READ: Final = Path(Tier.DISK, Tier.CPU, LinkClass.HOST)

_GB: Final = 1e9
_POOL: Final = 60_000.0 * KV_BYTES_PER_TOKEN  # as `Costs` has it

BYTES_PER_S: Final[Mapping[Path, float]] = {
    LOAD: 128 * _GB,  # the PCIe lanes of eight GPUs
    READ: 5 * _GB,  # one NVMe
    fetch_path(LinkClass.HOST): 50 * _GB,  # one PCIe 5 x16
    fetch_path(LinkClass.RACK): 25 * _GB,  # one port of 200 Gb/s
    fetch_path(LinkClass.ZONE): 12.5 * _GB,  # one of 100 Gb/s
    fetch_path(LinkClass.OTHER): 1.25 * _GB,  # TCP on 10 Gb/s: slower than computing
    **{pool_path(link): _POOL for link in LinkClass},
}
"""Where nothing is set."""


def link_between(one: Mapping[str, str], other: Mapping[str, str]) -> LinkClass:
    """How near two instances are, by their labels `host`, `rack` and `zone`.

    Names of hosts need to be unique in their rack alone, and those of racks in their zone.
    """
    nearest = LinkClass.OTHER
    for link in (LinkClass.ZONE, LinkClass.RACK, LinkClass.HOST):
        names = one.get(link, ""), other.get(link, "")
        if all(names):
            if names[0] != names[1]:
                return nearest
            nearest = link
    return nearest


class TokenMove(NamedTuple):
    """So many tokens had to take a path."""

    path: Path
    tokens: int


class Correction(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Of a path.

    Attributes:
        ratio: moving mean of the time it took over what the setting says.
        count: outcomes.
    """

    ratio: Annotated[float, Meta(ge=_RATIO_LOW, le=_RATIO_HIGH)] = 1.0
    count: Annotated[int, Meta(ge=0)] = 0


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """A path, for people: whose outcomes, what is set, what they say, and how many they are."""

    tenant_id: str
    source: str
    target: str
    link: str
    set_bytes_per_s: float
    bytes_per_s: float
    outcomes: int


LinkItems = list[tuple[Path, Correction]]


class PathSpeeds:
    """The speeds of all paths; there are at most as many as tiers and classes make.

    Attributes:
        unusable: outcomes that could not be used.
    """

    def __init__(
        self, settings: Mapping[Path, float] | None = None, items: LinkItems | None = None
    ) -> None:
        """Args:
        settings: bytes a second, of paths whose default is not right; positive.
        items: what was learnt.
        """
        self.unusable = 0
        self._settings = {**BYTES_PER_S, **(settings or {})}
        self._corrections = dict(items or ())

    def note(self, moves: Sequence[TokenMove], kv_bytes: int, seconds: float) -> None:
        """These moves took so long together, one after the other.

        Args:
            moves: what was moved. A path counts by its share of the time that is expected.
            kv_bytes: of a token.
            seconds: of all of them.
        """
        expected = [one.tokens * kv_bytes / self._set(one.path) for one in moves]
        total = _in_order(expected)
        if not (is_time(seconds) and isfinite(total) and min(expected, default=0.0) >= 0.0):
            self.unusable += 1
            return
        if total < _TELLING:
            return
        ratio = max(_RATIO_LOW, min(seconds / total, _RATIO_HIGH))
        for move, one in zip(moves, expected, strict=True):
            if one > 0.0:
                known = self._corrections.setdefault(move.path, Correction())
                step = max(_STEP, 1.0 / (known.count + 1)) * (one / total)
                moved = known.ratio + step * (ratio - known.ratio)
                known.ratio = max(_RATIO_LOW, min(moved, _RATIO_HIGH))
                known.count += 1

    def bytes_per_s(self, path: Path) -> float:
        """The speed of a path, as outcomes have corrected it."""
        known = self._corrections.get(path)
        return self._set(path) if known is None else self._set(path) / known.ratio

    def seconds(self, moves: Sequence[TokenMove], kv_bytes: int) -> float:
        """How long these moves take, one after the other."""
        return _in_order(one.tokens * kv_bytes / self.bytes_per_s(one.path) for one in moves)

    def costs(
        self,
        costs: Costs,
        kv_bytes: int,
        *,
        fetch: LinkClass = LinkClass.OTHER,
        pool: LinkClass = LinkClass.OTHER,
    ) -> Costs:
        """A cost model with these speeds.

        Args:
            kv_bytes: of a token.
            fetch: how near the instance is that would be fetched from.
            pool: how near the shared pool is.
        """
        return msgspec.structs.replace(
            costs,
            load_tokens_per_s=self.bytes_per_s(LOAD) / kv_bytes,
            disk_tokens_per_s=self.bytes_per_s(READ) / kv_bytes,
            fetch_tokens_per_s=self.bytes_per_s(fetch_path(fetch)) / kv_bytes,
            pool_tokens_per_s=self.bytes_per_s(pool_path(pool)) / kv_bytes,
        )

    def rows(self, tenant_id: str) -> list[LinkRow]:
        """All paths that are set, and those that outcomes were about."""
        return [
            LinkRow(
                tenant_id=tenant_id,
                source=path.source,
                target=path.target,
                link=path.link,
                set_bytes_per_s=self._set(path),
                bytes_per_s=self.bytes_per_s(path),
                outcomes=self._corrections.get(path, Correction()).count,
            )
            for path in sorted({*self._settings, *self._corrections})
        ]

    def items(self) -> LinkItems:
        """The state, by path."""
        return sorted(self._corrections.items())

    def _set(self, path: Path) -> float:
        return self._settings.get(path) or BYTES_PER_S[fetch_path(path.link)]


def _in_order(seconds: Iterable[float]) -> float:
    """The sum, with the same bits in all versions of Python: `sum` has others from 3.12 on."""
    total = 0.0
    for one in seconds:
        total += one
    return total
