"""What engines carry by their own word: the newest sample of each, a fold of load records."""

from collections.abc import Iterable

from routing.bounds import LOAD_SAMPLE_S
from routing.by_target import ByTarget
from schemas.routing_records import LoadSample, Target


class Samples:
    """The newest sample of each target, by when it was observed. Cost O(1) a sample."""

    def __init__(self) -> None:
        self._newest: ByTarget[LoadSample] = ByTarget()

    def __len__(self) -> int:
        """Of how many targets."""
        return len(self._newest)

    @property
    def dropped(self) -> int:
        """Targets that had to go for others."""
        return self._newest.dropped

    def note(self, sample: LoadSample) -> bool:
        """Keeps it, unless a newer one is there; says whether it is kept."""
        known = self._newest.get(sample.target)
        if known is not None and known.observed_at > sample.observed_at:
            return False
        self._newest.put(sample.target, sample)
        return True

    def forget(self, target: Target) -> None:
        """Whoever has its name next is another one."""
        self._newest.pop(target)

    def of(self, target: Target) -> LoadSample | None:
        """The newest of a target, however old."""
        return self._newest.get(target)

    def newest(self, target: Target, now: float) -> LoadSample | None:
        """That of a target; None where there is none that still says something."""
        sample = self._newest.get(target)
        if sample is None or now - sample.observed_at > LOAD_SAMPLE_S:
            return None
        return sample

    def all(self) -> tuple[LoadSample, ...]:
        """In the order in which they came, the oldest first."""
        return tuple(sample for _, sample in self._newest.items())

    def restore(self, samples: Iterable[LoadSample]) -> None:
        """The inverse of `all`."""
        for sample in samples:
            self._newest.put(sample.target, sample)
