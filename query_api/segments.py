"""Segments of memory beside the instances whose caches they are. Pure."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from query_api.ports import SegmentView
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.registration import Registration


class SegmentOwners:
    """Which registrations a segment belongs to: those that name it by `memory_segment`.

    A name is that of a segment of any host; with `HOST/` before it, of that host. In both parts `*`
    stands for anything, `?` for one character and `[abc]` for one of these.

    Cost of `of`: O(1), and O(different patterns of its host, and of any); of making it
    O(registrations).
    """

    def __init__(self, registrations: Iterable[Registration]) -> None:
        self._named: dict[tuple[str, str], list[Registration]] = {}
        # By host, where it is no pattern; "" is any.
        self._patterns: dict[str, dict[str, list[Registration]]] = {}
        self._of_hosts: dict[tuple[str, str], list[Registration]] = {}
        for registration in registrations:
            if registration.memory_segment:
                host, _, segment = registration.memory_segment.rpartition("/")
                if _is_pattern(host):
                    of = self._of_hosts.setdefault((host, segment), [])
                elif _is_pattern(segment):
                    of = self._patterns.setdefault(host, {}).setdefault(segment, [])
                else:
                    of = self._named.setdefault((host, segment), [])
                of.append(registration)

    def of(self, key: SegmentKey) -> tuple[Registration, ...]:
        """Those of one segment, sorted by service key."""
        found = [
            *self._named.get(("", key.segment), ()),
            *self._named.get((key.host, key.segment), ()),
        ]
        for host in ("", key.host):
            for segment, registrations in self._patterns.get(host, {}).items():
                if fnmatchcase(key.segment, segment):
                    found += registrations
        for (host, segment), registrations in self._of_hosts.items():
            if fnmatchcase(key.host, host) and fnmatchcase(key.segment, segment):
                found += registrations
        return tuple(sorted(found, key=lambda one: (one.service_key, one.stream)))


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def segment_views(
    segments: Mapping[SegmentKey, SegmentState],
    registrations: Iterable[Registration],
    *,
    now: float,
) -> list[SegmentView]:
    """All segments, sorted by host and name; `now` in Unix seconds.

    Those that a table may forget are left out: it does so with its next record of a segment, which
    may not come.
    """
    owners = SegmentOwners(registrations)
    return [
        SegmentView(
            key, state, state.standing(now), max(now - state.observed_at, 0.0), owners.of(key)
        )
        for key, state in sorted(segments.items(), key=lambda item: item[0])
        if not state.is_old(now)
    ]
