"""How long computing a prompt takes, learnt of outcomes, for each model and class of instances.

    c0 + c1 * (L - C) + c2 * (L^2 - C^2)        L tokens of which C are cached

The fit of `regression.py` on the times that engines took, from the cost model that was set for
them; that one holds until there are `COUNT_NEEDED` outcomes. Beside it stands how well times to the
first token were foretold as a whole: waiting, loading and fetching included.

All classes of a model teach one fit of all of them, too (`ALL`). It holds for a class that is not
known yet, and for one that was not seen to differ: else those that are known would look cheaper, or
dearer, than equals that are not, and get all requests, or none.
"""

from math import sqrt
from typing import Final

import msgspec

from routing.bounds import ESTIMATED_CLASSES_MAX
from routing.costs import UNLIMITED, Costs
from routing.estimates.accuracy import Accuracy, is_time
from routing.estimates.classes import ClassKey, RecentValues
from routing.estimates.regression import Regression, Three, begin
from schemas.routing_records import CostModel

ALL: Final = ""
"""Name of the class that stands for all of a model."""

_DIFFERENT: Final = 0.1
"""Share by which a class has to differ from all of them together, at the least."""

_DIFFERENT_SIGMAS: Final = 4.0
_REMEMBERED: Final = 500.0  # outcomes that a fit is about; it forgets others
_TYPICAL_PROMPT: Final = 2048  # at which two fits are held against each other

_DEFAULTS: Final = (0.01, 1 / 8000, 6e-10)
"""Where the prior has no such term, what is about right."""


class PrefillClass(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What is known of one class.

    Attributes:
        fit: of the time to compute.
        computing: how well the fit knew it.
        first_token: how well the time to the first token was foretold.
    """

    fit: Regression
    computing: Accuracy
    first_token: Accuracy


class PrefillRow(msgspec.Struct, frozen=True, kw_only=True):
    """A class, for people.

    Attributes:
        outcomes: of computing; how many the fit has.
        is_believed: whether the fit has enough outcomes; else that of `ALL` holds, or the prior.
        fixed_s, token_s, token_squared_s: the coefficients of the fit; None where the prior holds.
        mape: mean error of the fit over the last outcomes, as a share of the actual time.
        promises: times to the first token that were foretold.
        promise_mape: mean error of these.
        p90: so many times what is foretold is the 90th percentile.
        p90_coverage: share of the last ones within it; 0.9 is aimed at.
    """

    tenant_id: str
    model_name: str
    class_name: str
    outcomes: int
    is_believed: bool
    fixed_s: float | None
    token_s: float | None
    token_squared_s: float | None
    mape: float
    promises: int
    promise_mape: float
    p90: float
    p90_coverage: float


PrefillItems = list[tuple[ClassKey, PrefillClass]]


class PrefillFits:
    """All classes, of which those go that had no outcome for the longest.

    Attributes:
        unusable: outcomes that could not be used.
    """

    def __init__(self, items: PrefillItems | None = None, forgotten: int = 0) -> None:
        self.unusable = 0
        self._classes: RecentValues[ClassKey, PrefillClass] = RecentValues(
            ESTIMATED_CLASSES_MAX, items or (), forgotten
        )

    @property
    def forgotten(self) -> int:
        """Classes that had to go for others."""
        return self._classes.forgotten

    def note(
        self, key: ClassKey, prior: Costs | CostModel, prompt: int, cached: int, seconds: float
    ) -> None:
        """A prompt was computed.

        Args:
            prior: what the fit begins with, where the class is new.
            prompt: its tokens.
            cached: those of them that were not computed.
            seconds: what it took, without waiting, loading and fetching.
        """
        features = _features(prompt, cached)
        if not is_time(seconds) or prompt < 1:
            self.unusable += 1
            return
        is_usable = True
        for name in (key, ClassKey(key.tenant_id, key.model_name, ALL)):
            one = self._classes.use(name, lambda: _begin(prior))
            one.computing.note(one.fit.expected_s(features), seconds)
            is_usable = one.fit.note(features, seconds)
        self.unusable += not is_usable

    def note_promise(
        self, key: ClassKey, prior: Costs | CostModel, expected_s: float, actual_s: float
    ) -> None:
        """A first token came so long after the decision, and was expected after so long."""
        if not (is_time(expected_s) and is_time(actual_s)) or min(expected_s, actual_s) <= 0.0:
            self.unusable += 1
            return
        self._classes.use(key, lambda: _begin(prior)).first_token.note(expected_s, actual_s)

    def costs(self, key: ClassKey, prior: Costs) -> Costs:
        """What computing takes there: the prior with the coefficients that were learnt."""
        fit = self._fit(key)
        if fit is None:
            return prior
        fixed, token, squared = fit.coefficients()
        return msgspec.structs.replace(
            prior,
            fixed_s=fixed,
            prefill_tokens_per_s=1.0 / token if token > 0.0 else UNLIMITED,
            token_squared_s=squared,
        )

    def _fit(self, key: ClassKey) -> Regression | None:
        """What holds for a class; None where nothing is known of it, nor of others of the model."""
        own, every = self._classes.get(key), self._classes.get(key._replace(class_name=ALL))
        if every is None or not every.fit.is_believed:
            return own.fit if own is not None and own.fit.is_believed else None
        if own is None or not own.fit.is_believed or not _differ(own.fit, every.fit):
            return every.fit
        return own.fit

    def p90(self, key: ClassKey) -> float:
        """So many times the expected time to the first token is its 90th percentile."""
        one = self._classes.get(key)
        return Accuracy().ratio if one is None else one.first_token.ratio

    def rows(self) -> list[PrefillRow]:
        """All classes but `ALL`, by tenant, model and class."""
        known = sorted(self.items(), key=lambda item: item[0])
        return [_row(key, one) for key, one in known if key.class_name != ALL]

    def items(self) -> PrefillItems:
        """The state: all classes, the first to go first."""
        return self._classes.items()


def _features(prompt: int, cached: int) -> Three:
    cached = max(min(cached, prompt), 0)
    return 1.0, float(prompt - cached), float(prompt * prompt - cached * cached)


def _differ(own: Regression, every: Regression) -> bool:
    """Whether a class takes another time than all of them, by more than its outcomes scatter."""
    features = _features(_TYPICAL_PROMPT, 0)
    own_s, every_s = own.expected_s(features), every.expected_s(features)
    fixed, token, squared = own.scales  # no `sum`: see `regression.py`
    whole_s = fixed * features[0] + token * features[1] + squared * features[2]
    scatter_s = whole_s * sqrt(own.variance / min(float(own.count), _REMEMBERED))
    return abs(own_s - every_s) > max(_DIFFERENT * every_s, _DIFFERENT_SIGMAS * scatter_s)


def _begin(prior: Costs | CostModel) -> PrefillClass:
    coefficients = (prior.fixed_s, 1.0 / prior.prefill_tokens_per_s, prior.token_squared_s)
    return PrefillClass(begin(coefficients, _DEFAULTS), Accuracy(), Accuracy())


def _row(key: ClassKey, one: PrefillClass) -> PrefillRow:
    believed = one.fit.is_believed
    fixed, token, squared = one.fit.coefficients() if believed else (None, None, None)
    return PrefillRow(
        tenant_id=key.tenant_id,
        model_name=key.model_name,
        class_name=key.class_name,
        outcomes=one.fit.count,
        is_believed=believed,
        fixed_s=fixed,
        token_s=token,
        token_squared_s=squared,
        mape=one.computing.mean_error,
        promises=one.first_token.count,
        promise_mape=one.first_token.mean_error,
        p90=one.first_token.ratio,
        p90_coverage=one.first_token.coverage,
    )
