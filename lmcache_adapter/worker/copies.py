"""Chunks of which a worker holds several by one name. Pure.

An operation names a chunk by the hash of its tokens, as do the keys of a full sync, and nothing of
its key besides (LMCache 0.5.6): neither the tags of its request (`lmcache.tag.*`) nor its layer
(`use_layerwise`). A cache announces what it has not, so a chunk that is announced while it is held
is another one of that name. Once one of them is gone no message says whether a request finds the
chunk: it may ask for one of the others, or need each layer. Until all are gone, or one is announced
again, or a full sync says how many there are, the chunk counts, and is unsure.

And a worker that keeps layers apart makes room without a message (`batched_allocate` of LMCache's
`local_cpu_backend.py`): where there are several of one name, chunks of one layer all of which are
gone may still count. Tags look the same, so a worker is unsure while it has several of a name.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable


class Copies:
    """Of one worker, by location; see the module. A few bytes for each chunk that has several."""

    def __init__(self) -> None:
        self._more: defaultdict[str, Counter[int]] = defaultdict(Counter)  # than one
        self._unsure: defaultdict[str, set[int]] = defaultdict(set)
        self._has_had = False

    @property
    def are_unknown(self) -> bool:
        """Whether there may be a chunk that is of no use to a request."""
        return any(self._more.values()) or any(self._unsure.values())

    def at(self, location: str) -> bool:
        """Whether there are any."""
        return bool(self._more[location] or self._unsure[location])

    def add(self, location: str, key: int) -> None:
        """A chunk that is held is announced again."""
        self._has_had = True
        self._more[location][key] += 1
        self._unsure[location].discard(key)

    def remove(self, location: str, key: int, *, is_counted: bool) -> bool:
        """A chunk that is held goes; whether another one of its name is left, or may be: where not
        `is_counted`, it may have gone before these were counted.
        """
        more = self._more[location]
        if key not in more and (is_counted or not self._has_had):
            self._unsure[location].discard(key)
            return False
        self._unsure[location].add(key)
        if is_counted:
            more[key] -= 1
            if not more[key]:
                del more[key]
        return True

    def replace(self, location: str, keys: Iterable[int]) -> None:
        """These are there. Where some are less often than others they may lack a layer."""
        counts = Counter(keys)
        most = max(counts.values(), default=1)
        self._more[location] = Counter({key: n - 1 for key, n in counts.items() if n > 1})
        self._unsure[location] = {key for key, n in counts.items() if n < most}
        self._has_had |= most > 1

    def clear(self) -> None:
        """The worker holds nothing."""
        self._more.clear()
        self._unsure.clear()
        self._has_had = False
