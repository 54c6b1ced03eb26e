"""What engines carry by their own word, with samples of this process that are not back yet."""

from collections.abc import Iterable

from routing.bounds import LOAD_SAMPLE_S
from routing.fold.samples import Samples
from schemas.routing_records import LoadSample, Target, UnregisteredEngine


class OverlaidSamples:
    """See the module. Cost O(1) a sample.

    Attributes:
        base: of the fold.
    """

    def __init__(self) -> None:
        self.base = Samples()
        self._own = Samples()
        self._unregistered: dict[UnregisteredEngine, float] = {}  # here, and not by the log yet

    @property
    def dropped(self) -> int:
        """Targets that had to go for others."""
        return self._own.dropped + self.base.dropped

    def note(self, sample: LoadSample) -> bool:
        """A sample of this process; says whether it is the newest of its target."""
        if not self.is_newest(sample):
            return False
        return self._own.note(sample)

    def is_newest(self, sample: LoadSample) -> bool:
        """Whether none is newer, and its engine was not unregistered since."""
        target = sample.target
        if self._unregistered and self._is_of_before(sample):
            return False
        known = (self._own.of(target), self.base.of(target))
        return all(one is None or one.observed_at <= sample.observed_at for one in known)

    def come(self, samples: Iterable[LoadSample]) -> None:
        """The base has these, or newer ones."""
        for sample in samples:
            own, base = self._own.of(sample.target), self.base.of(sample.target)
            if own is not None and base is not None and own.observed_at <= base.observed_at:
                self._own.forget(sample.target)

    def forget(self, engines: Iterable[UnregisteredEngine], now: float) -> None:
        """These are registered no more; the log has yet to say so."""
        before = self._unregistered
        self._unregistered = {one: at for one, at in before.items() if at > now - LOAD_SAMPLE_S}
        for one in engines:
            self._unregistered[one] = now
            self._own.forget(one.target)

    def forgotten(self, engines: Iterable[UnregisteredEngine]) -> None:
        """The log says so; own samples that are left are of their successors, unless the log alone
        knew of it.
        """
        for one in engines:
            if self._unregistered.pop(one, None) is None:
                self._own.forget(one.target)

    def newest(self, target: Target, now: float) -> LoadSample | None:
        """That of a target; None where there is none that still says something."""
        sample = self.base.newest(target, now)
        if sample is not None and self._unregistered and self._is_of_before(sample):
            sample = None
        own = self._own.newest(target, now) if len(self._own) else None
        if own is None or (sample is not None and sample.observed_at > own.observed_at):
            return sample
        return own

    def _is_of_before(self, sample: LoadSample) -> bool:
        """Whether it is of an engine that was unregistered since."""
        found = (at for one, at in self._unregistered.items() if one.target == sample.target)
        return any(sample.observed_at <= at for at in found)

    def targets(self) -> set[Target]:
        """Those of which there is one."""
        every = (*self.base.all(), *self._own.all())
        return {sample.target for sample in every if not self._is_of_before(sample)}
