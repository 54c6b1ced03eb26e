"""What a request of a model takes, by the last decisions: for those of which nothing else is known.

Engines say how many wait, and not what these are. What was computed lately is the best guess: where
most of each prompt is cached, a whole prompt would be many times too much.
"""

from collections import OrderedDict
from typing import Final

from schemas.limits import LOAD_MODELS_MAX
from schemas.routing_records import Decision

_WINDOW: Final = 50
"""Decisions over which the mean moves."""


class MeanWork:
    """Of each tenant's models; the one without a decision for the longest goes. O(1) each."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def note(self, decision: Decision) -> None:
        """A decision; one that has nobody compute says nothing."""
        if decision.chosen < 0:
            return
        one = decision.candidates[decision.chosen]
        work = one.load_s + one.transfer_s + one.prefill_s
        name = (decision.scope.tenant_id, decision.scope.model_name)
        count, mean = self._means.pop(name, (0, 0.0))
        count = min(count + 1, _WINDOW)
        self._means[name] = (count, mean + (work - mean) / count)
        if len(self._means) > LOAD_MODELS_MAX:
            self._means.popitem(last=False)

    def seconds(self, tenant_id: str, model_name: str, default_s: float) -> float:
        """Of a request; the default before the first decision."""
        known = self._means.get((tenant_id, model_name))
        return default_s if known is None else known[1]
