"""Instances that decode, where prefill and decode are apart.

A batch has one time between two tokens, by `routing.estimates.decode`; it changes when a
request comes or goes, and each request of the batch gets a token meanwhile. A request holds its
prompt and, on average, half of its output. Who decodes is chosen when a request arrives; it comes
once its prompt has been computed, and its caches have, which are sent layer by layer meanwhile.
"""

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from lab.whatif.outcome import DecodeOutcome, latency_of
from lab.whatif.setup import RefusalBasis, Setup
from routing.estimates.decode import DecodeTerms, OutputMeans
from routing.policies.decode_choice import (
    DecodeParameters,
    Decoder,
    DecodeRequest,
    exposed_s,
    rank_decoders,
)
from routing.policies.refusal import (
    DecodingRequest,
    PromptInProgress,
    RefusalRule,
    decode_time_s,
    is_refused_at_decoding,
    population_in,
    times_ahead,
)

SAMPLE_S: Final = 1.0
_WARM_SAMPLES: Final = 100  # until the first ones end
_WORST: Final = 0.1  # of the intervals, whose mean is a request's time between two tokens


class PendingDecode(NamedTuple):
    """A request whose prompt is computed.

    Attributes:
        at: when it comes to its decoder.
        number: of the request.
        decoder: which one.
        tokens: that it will hold there.
        output: tokens of its output.
        is_in_time: whether its first token meets its objective.
    """

    at: float
    number: int
    decoder: int
    tokens: int
    output: int
    is_in_time: bool


class _Running(NamedTuple):
    end_step: float
    since: float
    first_step: float
    coming: PendingDecode


class _Batch:
    """What one instance decodes."""

    def __init__(self, terms: DecodeTerms) -> None:
        self.tokens = 0
        self.assigned = 0
        self.assigned_tokens = 0
        self.last_chosen = -1
        self.running: list[_Running] = []  # a heap
        self.next_end = inf
        self._terms = terms
        self._steps = 0.0
        self._at = 0.0
        self._interval = 0.0
        self._changed_at = [0.0]  # in steps: since when each interval holds
        self._intervals = [0.0]

    def tbt_with(self, tokens: int) -> float:
        """Seconds between two tokens, once a request with so many comes, too."""
        return self._terms.tbt_s(len(self.running), self.tokens, tokens)

    def start(self, coming: PendingDecode) -> None:
        self._advance(coming.at)
        self.tokens += coming.tokens
        end = self._steps + coming.output
        heappush(self.running, _Running(end, coming.at, self._steps, coming))
        self._change()

    def end(self) -> tuple[_Running, float, float]:
        """The first that ends: itself, when, and its time between two tokens."""
        at = self.next_end
        self._advance(at)
        one = heappop(self.running)
        self._steps = one.end_step
        self.tokens -= one.coming.tokens
        tbt = self._worst(one)
        self._change()
        return one, at, tbt

    def _advance(self, now: float) -> None:
        if self._interval:
            self._steps += (now - self._at) / self._interval
        self._at = now

    def _change(self) -> None:
        terms, count = self._terms, len(self.running)
        self._interval = (
            terms.fixed_s + terms.request_s * count + terms.token_s * self.tokens if count else 0.0
        )
        self._changed_at.append(self._steps)
        self._intervals.append(self._interval)
        left = self.running[0].end_step - self._steps if count else inf
        self.next_end = self._at + max(left, 0.0) * self._interval if count else inf

    def _worst(self, one: _Running) -> float:
        """The mean of the longest tenth of its intervals."""
        first = bisect_right(self._changed_at, one.first_step) - 1
        ends = [*self._changed_at[first + 1 :], one.end_step]
        begins = [one.first_step, *self._changed_at[first + 1 :]]
        spans = zip(self._intervals[first:], begins, ends, strict=True)
        parts = sorted(((took, end - begin) for took, begin, end in spans), reverse=True)
        left = whole = _WORST * one.coming.output
        seconds = 0.0
        for took, steps in parts:
            used = min(steps, left)
            seconds += used * took
            left -= used
        return seconds / whole


class DecodePool:
    """All instances that decode. Deterministic; cost O(instances) for each that comes or ends."""

    def __init__(self, setup: Setup) -> None:
        costs = setup.decode_costs
        self._terms = DecodeTerms(costs.fixed_s, costs.request_s, costs.token_s)
        self._parameters = DecodeParameters(layers=costs.layers)
        self._slo_s = setup.slo_tbt_s or 0.0
        self._rule = setup.refusal
        self._load_max = setup.decode_load
        self._move_tokens_per_s = setup.costs.fetch_tokens_per_s
        self._batches = [_Batch(self._terms) for _ in range(setup.decoders)]
        self._coming: list[PendingDecode] = []  # a heap
        self._means = OutputMeans()
        self._sample_at = 0.0
        self._decoding: list[int] = []
        self._computing: list[int] = []
        self._tbts: list[float] = []
        self._wasted = 0
        self._good = 0

    def advance(self, now: float) -> None:
        """What comes and ends by now, in its order."""
        while True:
            batch = min(self._batches, key=lambda one: one.next_end)
            comes = self._coming[0].at if self._coming else inf
            at = min(batch.next_end, comes)
            self._sample(min(at, now))
            if at > now or at == inf:
                return
            if batch.next_end <= comes:
                self._end(batch)
            else:
                self._start(heappop(self._coming))

    def tbt_now_s(self, prompt: int) -> float:
        """Between two tokens at the best instance, by what it decodes now."""
        return min(batch.tbt_with(prompt) for batch in self._batches)

    def tbt_then_s(self, prompt: int, now: float, in_s: float) -> float:
        """The same as it will be from so many seconds on, all instances alike."""
        decoding = [
            DecodingRequest(now - one.since, one.coming.tokens)
            for batch in self._batches
            for one in batch.running
        ]
        computing = [PromptInProgress(one.at - now, one.tokens) for one in self._coming]
        took = decode_time_s(self._means.decode_s, self._means.tokens, self._slo_s)
        return max(
            population_in(decoding, computing, at, took).tbt_s(
                self._terms, len(self._batches), prompt
            )
            for at in times_ahead(computing, in_s, took)
        )

    def assign(
        self,
        number: int,
        tie: int,
        *,
        prompt: int,
        output: int,
        prefill_s: float,
        ends_at: float,
        is_in_time: bool,
    ) -> None:
        """Chooses who decodes a request, which comes when its prompt has been computed."""
        request = DecodeRequest(prompt, self._means.tokens, prefill_s, self._slo_s, tie)
        chosen = rank_decoders(request, self._decoders(), self._parameters)[0]
        at = int(chosen.decoder.instance_id)
        batch = self._batches[at]
        tokens = prompt + output // 2
        batch.assigned += 1
        batch.assigned_tokens += tokens
        batch.last_chosen = number
        moved = exposed_s(prompt / self._move_tokens_per_s, prefill_s, self._parameters.layers)
        heappush(
            self._coming, PendingDecode(ends_at + moved, number, at, tokens, output, is_in_time)
        )

    def outcome(self) -> DecodeOutcome:
        """After all have ended. What is left after the last request came is not sampled."""
        self._sample_at = inf
        self.advance(inf)
        decoding, computing = self._decoding[_WARM_SAMPLES:], self._computing[_WARM_SAMPLES:]
        mean = fmean(decoding) if decoding else 0.0
        return DecodeOutcome(
            requests=len(self._tbts),
            wasted=self._wasted,
            within=self._good,
            tbt=latency_of(self._tbts),
            running=mean,
            swing=pstdev(decoding) / mean if mean else 0.0,
            phase=_correlation(decoding, computing),
        )

    def _decoders(self) -> list[Decoder]:
        return [
            Decoder(
                str(place),
                running=len(batch.running) + batch.assigned,
                kv_tokens=batch.tokens + batch.assigned_tokens,
                move_tokens_per_s=self._move_tokens_per_s,
                last_chosen=batch.last_chosen,
                terms=self._terms,
            )
            for place, batch in enumerate(self._batches)
        ]

    def _start(self, coming: PendingDecode) -> None:
        batch = self._batches[coming.decoder]
        batch.assigned -= 1
        batch.assigned_tokens -= coming.tokens
        rule = RefusalRule.NOW if self._rule is RefusalBasis.NOW else RefusalRule.PREDICT
        objective = self._slo_s * self._load_max
        if is_refused_at_decoding(rule, batch.tbt_with(coming.tokens), objective):
            self._wasted += 1
        elif coming.output < 2:  # its first token was its last
            self._count(coming, 0.0, 0.0)
        else:
            batch.start(coming)

    def _end(self, batch: _Batch) -> None:
        one, at, tbt = batch.end()
        self._count(one.coming, tbt, at - one.since)

    def _count(self, coming: PendingDecode, tbt: float, took_s: float) -> None:
        self._means.note(coming.output, took_s)
        self._tbts.append(tbt)
        self._good += coming.is_in_time and (not self._slo_s or tbt <= self._slo_s)

    def _sample(self, until: float) -> None:
        while self._sample_at <= until < inf:
            self._decoding.append(sum(len(batch.running) for batch in self._batches))
            self._computing.append(len(self._coming))
            self._sample_at += SAMPLE_S


def _correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Pearson's; 0 where either stands still."""
    if len(one) < 2 or pstdev(one) == 0.0 or pstdev(other) == 0.0:
        return 0.0
    first, second = fmean(one), fmean(other)
    together = fmean((a - first) * (b - second) for a, b in zip(one, other, strict=True))
    return together / (pstdev(one) * pstdev(other))
