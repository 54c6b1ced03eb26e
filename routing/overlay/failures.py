"""Whose requests fail, own decisions and reports included that are not back yet."""

from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import Final

from routing.bounds import FAILING_ENDS_KEPT, LOAD_MODELS_MAX, LOAD_TARGETS_MAX
from routing.fold.failures import End, Failures, FailureState, ModelKey
from routing.overlay.own_records import OwnRecords, Stamps
from schemas.routing_records import Target, UnregisteredEngine

_FINE: Final = FailureState()


class OverlaidFailures(Failures):
    """Follows own records alone, over what the base says. A target or a model that one of them
    changes is copied from the base, and is the base's again once that record is back.

    Attributes:
        base: of the fold.
    """

    def __init__(self, own: OwnRecords) -> None:
        """Args:
        own: records of this process.
        """
        super().__init__()
        self.base = Failures()
        self._targets: Stamps[Target] = Stamps(own, LOAD_TARGETS_MAX)
        self._models: Stamps[ModelKey] = Stamps(own, LOAD_MODELS_MAX)

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        for target in self._targets.leaving():
            self._known.pop(target)
        for model in self._models.leaving():
            self._ends.pop(model, None)

    def forget(self, engines: Iterable[UnregisteredEngine]) -> None:
        """See `Failures`; the log has yet to say so."""
        for target, _ in engines:
            if self._find(target) is not None:
                self._drop(target)

    def __len__(self) -> int:
        """See `Failures`."""
        return len(self._known) + len(self.base)

    def failing(self, now: float) -> list[tuple[Target, FailureState]]:
        """See `Failures`."""
        below = [one for one in self.base.failing(now) if self._known.get(one[0]) is None]
        return sorted([*super().failing(now), *below], key=lambda item: item[0])

    def _find(self, target: Target) -> FailureState | None:
        here = self._known.get(target)
        return self.base.find(target) if here is None else here

    def _change(self, target: Target, one: FailureState) -> FailureState:
        changed = copy(one)
        self._known.put(target, changed)
        for gone in self._targets.put(target):
            self._known.pop(gone)
        return changed

    def _drop(self, target: Target) -> None:
        self._change(target, _FINE)

    def _ends_of(self, model: ModelKey) -> deque[End]:
        here = self._ends.get(model)
        return deque(self.base.ends_of(model), FAILING_ENDS_KEPT) if here is None else here

    def _note_end(self, now: float, model: ModelKey, end: End) -> None:
        super()._note_end(now, model, end)
        for gone in self._models.put(model):
            self._ends.pop(gone, None)
