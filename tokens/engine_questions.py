"""The latest prompts whose tokens an engine was asked for, and how many of them got none in time.

A busy engine answers `/tokenize` late. Its prompts are routed by load then, and conversations leave
their caches, though nothing has failed.
"""

import logging
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from schemas.identities import DEFAULT_TENANT

QUESTIONS_KEPT_MAX: Final = 100  # of a model, the latest
QUESTIONS_S: Final = 900.0  # older ones say nothing
QUESTIONS_MODELS_MAX: Final = 256  # that are remembered; the oldest goes
UNANSWERED_MIN: Final = 5  # of them, until that is said

_logger = logging.getLogger(__name__)


class UnansweredModel(NamedTuple):
    """A model of whose prompts too many got no tokens.

    Attributes:
        asked: prompts that an engine was asked about, the latest.
        unanswered: of them, those that got none in time.
        last: when the last of these was, Unix seconds.
    """

    tenant_id: str
    model: str
    asked: int
    unanswered: int
    last: float


class _Question(NamedTuple):
    at: float
    is_answered: bool


class _Questions:
    """Of one model."""

    def __init__(self) -> None:
        self.latest: deque[_Question] = deque(maxlen=QUESTIONS_KEPT_MAX)
        self.is_said = False


class EngineQuestions:
    """See the module. One loop."""

    def __init__(self) -> None:
        self._of_model: OrderedDict[tuple[str, str], _Questions] = OrderedDict()

    def note(self, tenant_id: str, model: str, now: float, *, is_answered: bool) -> None:
        """An engine was asked; `now` is Unix seconds."""
        key = tenant_id or DEFAULT_TENANT, model
        one = self._of_model.setdefault(key, _Questions())
        self._of_model.move_to_end(key)
        if len(self._of_model) > QUESTIONS_MODELS_MAX:
            self._of_model.popitem(last=False)
        one.latest.append(_Question(now, is_answered))
        if is_answered and not one.is_said:
            return  # no more are unanswered than before
        found = _unanswered(key, one, now)
        if not found.unanswered:
            one.is_said = False
        elif found.unanswered >= UNANSWERED_MIN and not one.is_said:
            one.is_said = True
            _logger.warning(
                "Of the last %d prompts of the model %s that engines were asked to make tokens of,"
                " %d got none in time, and are routed by load: name the model's files in `tokens`",
                found.asked,
                model,
                found.unanswered,
            )

    def unanswered(self, now: float) -> list[UnansweredModel]:
        """Models of which too many got none, by tenant and name; `now` is Unix seconds."""
        found = (
            _unanswered(key, one, now) for key, one in sorted(self._of_model.items(), key=_key)
        )
        return [one for one in found if one.unanswered >= UNANSWERED_MIN]


def _key(item: tuple[tuple[str, str], _Questions]) -> tuple[str, str]:
    return item[0]


def _unanswered(key: tuple[str, str], questions: _Questions, now: float) -> UnansweredModel:
    latest = [one for one in questions.latest if one.at > now - QUESTIONS_S]
    missed = [one.at for one in latest if not one.is_answered]
    return UnansweredModel(*key, len(latest), len(missed), max(missed, default=0.0))
