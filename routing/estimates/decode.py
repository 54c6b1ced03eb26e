"""How long decoding takes, learnt of outcomes: the time between two tokens, and how many come.

    TBT = d0 + d1 * (running + 1) + d2 * (kv_tokens + L)

The new request is one more of the batch, with its L tokens; all of a batch have the same time, so
that it says what the running ones get, too. How long an output will be is not foretold for each
request: it is the mean of the model's.
"""

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from routing.bounds import ESTIMATED_CLASSES_MAX, ESTIMATED_MODELS_MAX
from routing.estimates.accuracy import Accuracy, is_time
from routing.estimates.classes import ClassKey, ModelKey, RecentValues
from routing.estimates.regression import Regression, Three, begin

OUTPUT_TOKENS_FIRST: Final = 256.0
DECODE_S_FIRST: Final = 10.0
OUTPUT_TOKEN_SECONDS_FIRST: Final = DECODE_S_FIRST / OUTPUT_TOKENS_FIRST
"""What an output has, and takes, before any has ended."""

_DEFAULTS: Final = (0.001, 0.0002, 15e-9)
_MEAN_OVER: Final = 500  # outputs; each older one counts a little less
_COUNT_POSSIBLE: Final = 2**40


class DecodeTerms(NamedTuple):
    """What the time between two tokens is made of.

    Attributes:
        fixed_s: of each step.
        request_s: for each request of the batch.
        token_s: for each token that is held for the batch.
    """

    fixed_s: float = 0.0
    request_s: float = 0.0002
    token_s: float = 15e-9

    def tbt_s(self, running: int, kv_tokens: int, prompt: int) -> float:
        """Seconds between two tokens, once a request with such a prompt is decoded, too."""
        return self.fixed_s + self.request_s * (running + 1) + self.token_s * (kv_tokens + prompt)


class DecodeClass(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What is known of one class."""

    fit: Regression
    accuracy: Accuracy


class OutputMeans(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Of a model: how long its outputs are.

    Attributes:
        outputs, tokens: how many have ended, and the mean of their tokens.
        decodes, decode_s: how many times are known, and the mean from the first token to the last.
    """

    outputs: Annotated[int, Meta(ge=0)] = 0
    tokens: Annotated[float, Meta(ge=0.0, le=1e300)] = OUTPUT_TOKENS_FIRST
    decodes: Annotated[int, Meta(ge=0)] = 0
    decode_s: Annotated[float, Meta(ge=0.0, le=1e300)] = DECODE_S_FIRST

    def note(self, tokens: int | None, decode_s: float | None) -> None:
        """An output has ended."""
        if tokens is not None and 0 <= tokens <= _COUNT_POSSIBLE:
            self.outputs += 1
            self.tokens += (tokens - self.tokens) / min(self.outputs, _MEAN_OVER)
        if decode_s is not None and is_time(decode_s):
            self.decodes += 1
            self.decode_s += (decode_s - self.decode_s) / min(self.decodes, _MEAN_OVER)


class DecodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A class, for people; see `PrefillRow`. None where the prior holds."""

    tenant_id: str
    model_name: str
    class_name: str
    outcomes: int
    is_believed: bool
    fixed_s: float | None
    request_s: float | None
    token_s: float | None
    mape: float


class OutputRow(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a model, for people."""

    tenant_id: str
    model_name: str
    outputs: int
    output_tokens: float
    decode_s: float


DecodeItems = list[tuple[ClassKey, DecodeClass]]
OutputItems = list[tuple[ModelKey, OutputMeans]]


class DecodeFits:
    """All classes and models, of which those go that had no outcome for the longest.

    Attributes:
        unusable: outcomes that could not be used.
    """

    def __init__(
        self,
        items: DecodeItems | None = None,
        outputs: OutputItems | None = None,
        forgotten: int = 0,
    ) -> None:
        self.unusable = 0
        self._classes: RecentValues[ClassKey, DecodeClass] = RecentValues(
            ESTIMATED_CLASSES_MAX, items or (), forgotten
        )
        self._outputs: RecentValues[ModelKey, OutputMeans] = RecentValues(
            ESTIMATED_MODELS_MAX, outputs or ()
        )

    @property
    def forgotten(self) -> int:
        """Classes and models that had to go for others."""
        return self._classes.forgotten + self._outputs.forgotten

    def note_tbt(
        self,
        key: ClassKey,
        prior: DecodeTerms,
        running: int,
        kv_tokens: int,
        prompt: int,
        tbt_s: float,
    ) -> None:
        """A request was decoded at such an interval, beside so many others with so many tokens."""
        counts = (running, kv_tokens, prompt)
        if not is_time(tbt_s) or min(counts) < 0 or max(counts) > _COUNT_POSSIBLE:
            self.unusable += 1
            return
        features = _features(running, kv_tokens, prompt)
        one = self._classes.use(key, lambda: DecodeClass(begin(prior, _DEFAULTS), Accuracy()))
        one.accuracy.note(one.fit.expected_s(features), tbt_s)
        if not one.fit.note(features, tbt_s):
            self.unusable += 1

    def note_output(self, model: ModelKey, tokens: int | None, decode_s: float | None) -> None:
        """An output has ended; None for what is not known, of one of both."""
        self._outputs.use(model, OutputMeans).note(tokens, decode_s)

    def terms(self, key: ClassKey, prior: DecodeTerms) -> DecodeTerms:
        """What decoding takes there."""
        one = self._classes.get(key)
        if one is None or not one.fit.is_believed:
            return prior
        return DecodeTerms(*one.fit.coefficients())

    def output_tokens(self, model: ModelKey) -> float:
        """The mean of the model's last outputs, in tokens."""
        return (self._outputs.get(model) or OutputMeans()).tokens

    def output_token_s(self, model: ModelKey) -> float:
        """Seconds for each token of an output, by the last ones whose times are known."""
        known = self._outputs.get(model)
        if known is None or not (known.decodes and known.outputs):
            return OUTPUT_TOKEN_SECONDS_FIRST
        return known.decode_s / max(known.tokens, 1.0)

    def known_decode_s(self, model: ModelKey) -> float | None:
        """The mean of the last outputs, from the first token to the last; None before any."""
        known = self._outputs.get(model)
        return None if known is None or not known.decodes else known.decode_s

    def rows(self) -> list[DecodeRow]:
        """All classes, by tenant, model and class."""
        return [_row(key, one) for key, one in sorted(self.items(), key=lambda item: item[0])]

    def output_rows(self) -> list[OutputRow]:
        """All models, by tenant and name."""
        return [
            OutputRow(
                tenant_id=name.tenant_id,
                model_name=name.model_name,
                outputs=one.outputs,
                output_tokens=one.tokens,
                decode_s=one.decode_s,
            )
            for name, one in sorted(self.output_items(), key=lambda item: item[0])
        ]

    def items(self) -> DecodeItems:
        """The state of the classes, the first to go first."""
        return self._classes.items()

    def output_items(self) -> OutputItems:
        """The state of the models."""
        return self._outputs.items()


def _features(running: int, kv_tokens: int, prompt: int) -> Three:
    return 1.0, float(running + 1), float(kv_tokens + prompt)


def _row(key: ClassKey, one: DecodeClass) -> DecodeRow:
    believed = one.fit.is_believed
    fixed, request, token = one.fit.coefficients() if believed else (None, None, None)
    return DecodeRow(
        tenant_id=key.tenant_id,
        model_name=key.model_name,
        class_name=key.class_name,
        outcomes=one.fit.count,
        is_believed=believed,
        fixed_s=fixed,
        request_s=request,
        token_s=token,
        mape=one.accuracy.mean_error,
    )
