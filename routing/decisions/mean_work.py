"""What a request of a model is like, by the last decisions: for those of which nothing is known.

Engines say how many wait, and not what these are. What was computed lately is the best guess: where
most of each prompt is cached, a whole prompt would be many times too much.
"""

from collections import OrderedDict
from typing import Final

from routing.bounds import LOAD_MODELS_MAX
from routing.decisions.unbooked_load import TypicalRequest
from schemas.routing_records import Decision

_WINDOW: Final = 50
"""Decisions over which the mean moves."""


class MeanWork:
    """Of each tenant's models; the one without a decision for the longest goes. O(1) each."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], tuple[int, float, float]] = OrderedDict()

    def note(self, decision: Decision) -> None:
        """A decision; one that has nobody compute says nothing."""
        if decision.chosen < 0:
            return
        one = decision.candidates[decision.chosen]
        work = one.work_s
        name = (decision.scope.tenant_id, decision.scope.model_name)
        tokens = max(decision.prompt_tokens - one.prefix, 0)
        count, mean, mean_tokens = self._means.pop(name, (0, 0.0, 0.0))
        count = min(count + 1, _WINDOW)
        mean, mean_tokens = (
            mean + (work - mean) / count,
            mean_tokens + (tokens - mean_tokens) / count,
        )
        self._means[name] = (count, mean, mean_tokens)
        if len(self._means) > LOAD_MODELS_MAX:
            self._means.popitem(last=False)

    def usual(self, tenant_id: str, model_name: str, default: TypicalRequest) -> TypicalRequest:
        """A request; the default before the first decision."""
        known = self._means.get((tenant_id, model_name))
        if known is None:
            return default
        _, seconds, tokens = known
        token_s = seconds / tokens if tokens else default.token_s
        return default._replace(compute_s=seconds, tokens=tokens, token_s=token_s)
