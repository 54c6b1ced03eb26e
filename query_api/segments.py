"""Segments of memory beside the instances whose caches they are. Pure."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from query_api.ports import SegmentView
from schemas.memory import SegmentKey, SegmentState
from schemas.registration import Registration


class SegmentOwners:
    """Which registrations a segment belongs to: those that name it by `memory_segment`.

    A name is that of a segment of any host; with `HOST/` before it, of that host. In both parts `*`
    stands for anything, `?` for one character and `[abc]` for one of these.

    Cost of `of`: O(1), and O(patterns) where there are such; of making it O(registrations).
    """

    def __init__(self, registrations: Iterable[Registration]) -> None:
        self._named: dict[tuple[str, str], list[Registration]] = {}
        self._patterns: dict[tuple[str, str], list[Registration]] = {}
        for registration in registrations:
            if registration.memory_segment:
                host, _, segment = registration.memory_segment.rpartition("/")
                is_pattern = any(sign in registration.memory_segment for sign in "*?[")
                of = self._patterns if is_pattern else self._named
                of.setdefault((host, segment), []).append(registration)

    def of(self, key: SegmentKey) -> tuple[Registration, ...]:
        """Those of one segment, sorted by service key."""
        found = [
            *self._named.get(("", key.segment), ()),
            *self._named.get((key.host, key.segment), ()),
        ]
        for (host, segment), registrations in self._patterns.items():
            if fnmatchcase(key.segment, segment) and (not host or fnmatchcase(key.host, host)):
                found += registrations
        return tuple(sorted(found, key=lambda one: (one.service_key, one.stream)))


def segment_views(
    segments: Mapping[SegmentKey, SegmentState],
    registrations: Iterable[Registration],
    *,
    now: float,
) -> list[SegmentView]:
    """All segments, sorted by host and name; `now` in Unix seconds."""
    owners = SegmentOwners(registrations)
    return [
        SegmentView(
            key, state, state.standing(now), max(now - state.observed_at, 0.0), owners.of(key)
        )
        for key, state in sorted(segments.items(), key=lambda item: item[0])
    ]
