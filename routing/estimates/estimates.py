"""All that is learnt of outcomes, as one fold: what a first token, a decode and a move take.

A fold of what came of decisions, in the order of the log: no clock, no I/O, no randomness. Whoever
folds the same outcomes from the same state has the same bytes, and so the same digest.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from routing.bounds import ESTIMATED_CLASSES_MAX, ESTIMATED_MODELS_MAX
from routing.costs import Costs
from routing.estimates.classes import ClassKey, ModelKey, RecentValues
from routing.estimates.decode import (
    DecodeClass,
    DecodeFits,
    DecodeRow,
    DecodeTerms,
    OutputMeans,
    OutputRow,
)
from routing.estimates.links import (
    KV_BYTES_PER_TOKEN,
    Correction,
    LinkRow,
    Path,
    PathSpeeds,
    TokenMove,
)
from routing.estimates.prefill import PrefillClass, PrefillFits, PrefillRow
from routing.incremental_encoding import pieces_of
from schemas.codec import check_state_version
from schemas.errors import RepriseError
from schemas.identities import Text
from schemas.routing_records import CostModel

ESTIMATED_TENANTS_MAX: Final = 1024  # whose speeds of paths are remembered, 2 KiB each

ESTIMATES_VERSION: Final = 2  # 1: whatever tenant it was


class EstimatesError(RepriseError):
    """A stored state cannot be used; fold the outcomes again."""


class ObservedOutcome(msgspec.Struct, frozen=True, gc=False):
    """What came of a decision, as far as it is known now; None for what is not known.

    It may be given in parts, as outcomes come: the first token, then the end. Each time is used
    once, so it stands in one part alone.

    Attributes:
        key: tenant, model and class of the instance that computed the prompt.
        prior: what that instance's costs were set to; see `PrefillFits.note`.
        is_usable: False for what failed, was cancelled, or is of no decision: it is counted only.
        prompt_tokens, cached_tokens: as the engine counted them, else as was promised.
        expected_s: the time to the first token that was promised.
        expected_queue_s: of that, how long it was to wait.
        queue_s, prefill_s, ttft_s: as reported.
        moves: what was to be loaded and fetched before it was computed.
        kv_bytes: of a token of the model.
        output_tokens: in the end.
        decode_s: from the first token to the last.
        decode_key, decode_prior: of the instance that decoded, where that is known.
        running, kv_tokens: what that decoded beside it, and held for that.
        tbt_s: between two tokens.
    """

    key: ClassKey
    prior: Costs | CostModel = Costs()
    is_usable: bool = True
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected_s: float | None = None
    expected_queue_s: float = 0.0
    queue_s: float | None = None
    prefill_s: float | None = None
    ttft_s: float | None = None
    moves: tuple[TokenMove, ...] = ()
    kv_bytes: int = KV_BYTES_PER_TOKEN
    output_tokens: int | None = None
    decode_s: float | None = None
    decode_key: ClassKey | None = None
    decode_prior: DecodeTerms = DecodeTerms()
    running: int | None = None
    kv_tokens: int | None = None
    tbt_s: float | None = None


class EstimateRows(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, for people: what `GET /models` shows."""

    prefill: list[PrefillRow]
    decode: list[DecodeRow]
    outputs: list[OutputRow]
    links: list[LinkRow]


Classes = Annotated[list[tuple[ClassKey, PrefillClass]], Meta(max_length=ESTIMATED_CLASSES_MAX)]
Decoders = Annotated[list[tuple[ClassKey, DecodeClass]], Meta(max_length=ESTIMATED_CLASSES_MAX)]
Outputs = Annotated[list[tuple[ModelKey, OutputMeans]], Meta(max_length=ESTIMATED_MODELS_MAX)]
Counter = Annotated[int, Meta(ge=0)]


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    prefill: Classes
    decode: Decoders
    outputs: Outputs
    links: Annotated[
        list[tuple[Text, list[tuple[Path, Correction]]]], Meta(max_length=ESTIMATED_TENANTS_MAX)
    ]
    forgotten: tuple[Counter, Counter, Counter]
    unusable: Counter
    ignored: Counter


_decoder = msgspec.msgpack.Decoder(_State)


class Estimates:
    """What outcomes have taught. A first token takes some 10 us to `note`, an end and asking 2 us.

    Attributes:
        prefill, decode: its parts, to be asked.
    """

    def __init__(self, speeds: Mapping[Path, float] | None = None) -> None:
        """Args:
        speeds: as `PathSpeeds` takes them; they are settings, and in no dump.
        """
        self._speeds = speeds
        self._ignored = 0
        self._unusable = 0
        self.prefill = PrefillFits()
        self.decode = DecodeFits()
        self._links: RecentValues[str, PathSpeeds] = RecentValues(ESTIMATED_TENANTS_MAX)

    def note(self, observed: ObservedOutcome) -> None:
        """What came of a decision."""
        if not observed.is_usable:
            self._ignored += 1
            return
        self._note_first_token(observed)
        self._note_decoding(observed)

    def costs(self, key: ClassKey, prior: Costs) -> Costs:
        """What computing takes at an instance of that class; its speeds are those of the prior."""
        return self.prefill.costs(key, prior)

    def p90(self, key: ClassKey) -> float:
        """So many times the expected time to the first token is its 90th percentile."""
        return self.prefill.p90(key)

    def decode_terms(self, key: ClassKey, prior: DecodeTerms) -> DecodeTerms:
        """What decoding takes at an instance of that class."""
        return self.decode.terms(key, prior)

    def output_tokens(self, tenant_id: str, model_name: str) -> float:
        """How many tokens an output of the model has, on average."""
        return self.decode.output_tokens(ModelKey(tenant_id, model_name))

    def known_decode_s(self, tenant_id: str, model_name: str) -> float | None:
        """How long an output takes from its first token on, on average; None before any."""
        return self.decode.known_decode_s(ModelKey(tenant_id, model_name))

    def output_token_s(self, tenant_id: str, model_name: str) -> float:
        """Seconds for each token of an output of the model, on average."""
        return self.decode.output_token_s(ModelKey(tenant_id, model_name))

    def links(self, tenant_id: str) -> PathSpeeds:
        """The speeds of paths, by what the tenant's outcomes say; only to be asked."""
        return self._links.get(tenant_id) or PathSpeeds(self._speeds)

    def counters(self) -> dict[str, int]:
        """What was dropped: `classes_forgotten`, `outcomes_unusable` (impossible numbers),
        `outcomes_ignored` (failed, or of no decision).
        """
        return {
            "classes_forgotten": self.prefill.forgotten
            + self.decode.forgotten
            + self._links.forgotten,
            "outcomes_unusable": self._unusable
            + self.prefill.unusable
            + self.decode.unusable
            + sum(links.unusable for _, links in self._links.items()),
            "outcomes_ignored": self._ignored,
        }

    def rows(self) -> EstimateRows:
        """All of it, for people."""
        return EstimateRows(
            prefill=self.prefill.rows(),
            decode=self.decode.rows(),
            outputs=self.decode.output_rows(),
            links=[
                row for tenant, links in sorted(self._links.items()) for row in links.rows(tenant)
            ],
        )

    def dump(self) -> bytes:
        """The state, canonical: equal states have equal bytes. Cost O(state), at most 5 MB."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces; nothing may be noted meanwhile."""
        yield from pieces_of(
            _State(
                version=ESTIMATES_VERSION,
                prefill=self.prefill.items(),
                decode=self.decode.items(),
                outputs=self.decode.output_items(),
                links=[(tenant, links.items()) for tenant, links in self._links.items()],
                forgotten=(
                    self.prefill.forgotten,
                    self.decode.forgotten,
                    self._links.forgotten,
                ),
                unusable=self.counters()["outcomes_unusable"],
                ignored=self._ignored,
            )
        )

    def load(self, dumped: bytes) -> None:
        """Takes a state in place of its own; it goes on bit for bit as that would have.

        Raises:
            NewerVersionError: a newer Reprise wrote it; nothing was changed.
            EstimatesError: it is none, or of an older version; likewise.
        """
        check_state_version(dumped, "a state of the estimates", ESTIMATES_VERSION)
        try:
            state = _decoder.decode(dumped)
        except (ValueError, RecursionError, OverflowError) as error:
            raise EstimatesError(f"Expected a state of the estimates, got: {error}") from error
        if state.version != ESTIMATES_VERSION:
            raise EstimatesError(
                f"Expected a state of version {ESTIMATES_VERSION}, got: {state.version}"
            )
        prefill_forgotten, decode_forgotten, links_forgotten = state.forgotten
        self._ignored = state.ignored
        self._unusable = state.unusable
        self.prefill = PrefillFits(state.prefill, prefill_forgotten)
        self.decode = DecodeFits(state.decode, state.outputs, decode_forgotten)
        known = [(tenant, PathSpeeds(self._speeds, items)) for tenant, items in state.links]
        self._links = RecentValues(ESTIMATED_TENANTS_MAX, known, links_forgotten)

    def _note_first_token(self, observed: ObservedOutcome) -> None:
        if observed.ttft_s is not None and observed.expected_s is not None:
            key, prior = observed.key, observed.prior
            self.prefill.note_promise(key, prior, observed.expected_s, observed.ttft_s)
        rest = self._without_waiting(observed)
        prefill_s = observed.prefill_s
        if observed.moves and rest is not None:
            if prefill_s is not None:
                moved = rest - prefill_s
                tenant = observed.key.tenant_id
                links = self._links.use(tenant, lambda: PathSpeeds(self._speeds))
                links.note(observed.moves, observed.kv_bytes, max(moved, 0.0))
            rest -= self.links(observed.key.tenant_id).seconds(observed.moves, observed.kv_bytes)
        if prefill_s is None:
            prefill_s = rest
        if prefill_s is not None:
            tokens = observed.prompt_tokens, observed.cached_tokens
            self.prefill.note(observed.key, observed.prior, *tokens, prefill_s)

    def _without_waiting(self, observed: ObservedOutcome) -> float | None:
        """The time to the first token but for the queue; None where that is not known. Who was to
        begin at once is taken to have done so.
        """
        if observed.ttft_s is None:
            return None
        if observed.queue_s is not None:
            return observed.ttft_s - observed.queue_s
        return None if observed.expected_queue_s else observed.ttft_s

    def _note_decoding(self, observed: ObservedOutcome) -> None:
        if observed.output_tokens is not None or observed.decode_s is not None:
            model = ModelKey(observed.key.tenant_id, observed.key.model_name)
            self.decode.note_output(model, observed.output_tokens, observed.decode_s)
        if observed.tbt_s is None or observed.decode_key is None:
            return
        if observed.running is None or observed.kv_tokens is None:
            return
        self.decode.note_tbt(
            observed.decode_key,
            observed.decode_prior,
            observed.running,
            observed.kv_tokens,
            observed.prompt_tokens,
            observed.tbt_s,
        )
