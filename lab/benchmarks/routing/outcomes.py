"""What came of the requests of one drive, and the figures that are made of it."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

import msgspec

from lab.benchmarks.report.figures import Figure, percentile

LATE_S: Final = 2.0
"""A request that was sent so much later than it was to be shows that the machine was too busy."""


class SentRequest(msgspec.Struct, kw_only=True):
    """A request, and what came of it.

    Attributes:
        number: among all of its drive.
        at: monotonic seconds, when it was sent.
        instance_id: where to; "" where it was refused.
        promised_tokens, promised_s: what was said to be cached, and the time to its first token;
            None where nothing was said.
        cached_tokens, ttft_s: as its engine says; while it has said nothing, the time so far.
        is_done: whether it has.
        refused: whether it was sent to nobody.
        would_have_had_s: the time to its first token that the best engine would have had.
        problem: why it failed, or "".
    """

    number: int
    prompt_tokens: int
    at: float
    instance_id: str = ""
    promised_tokens: int | None = None
    promised_s: float | None = None
    cached_tokens: int = 0
    ttft_s: float = 0.0
    is_done: bool = False
    refused: bool = False
    would_have_had_s: float = 0.0
    problem: str = ""


class Drive(msgspec.Struct):
    """Attributes:
    sent: all requests after the warm-up, in order.
    decision_s: how long each decision took, as its client saw it.
    late_s: by how much a request was sent late at the most.
    """

    sent: list[SentRequest]
    decision_s: list[float]
    late_s: float

    @property
    def served(self) -> list[SentRequest]:
        """Those that were sent to an engine."""
        return [one for one in self.sent if not one.refused]

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that engines reused, 0..1, of those that they computed."""
        return _share([one for one in self.served if one.is_done], lambda one: one.cached_tokens)

    @property
    def promised_hit_rate(self) -> float:
        """The same as it was promised."""
        done = [one for one in self.served if one.is_done]
        return _share(done, lambda one: one.promised_tokens or 0)

    @property
    def mean_ttft_s(self) -> float:
        """Of all that were sent; see `SentRequest.ttft_s` for those that were never done."""
        return fmean(one.ttft_s for one in self.served)

    def ttft_s(self, percent: float) -> float:
        """A percentile of the same."""
        return percentile([one.ttft_s for one in self.served], percent)

    def within(self, objective_s: float) -> float:
        """Share of all requests, refused ones included, with a first token within it."""
        return sum(one.is_done and one.ttft_s <= objective_s for one in self.sent) / len(self.sent)

    def refused(self) -> float:
        """Share of all requests."""
        return sum(one.refused for one in self.sent) / len(self.sent)

    def refused_needlessly(self, objective_s: float) -> float:
        """Share of all requests that were refused, and would have been served within it."""
        needless = sum(one.refused and one.would_have_had_s <= objective_s for one in self.sent)
        return needless / len(self.sent)


def _share(of: Sequence[SentRequest], tokens: Callable[[SentRequest], int]) -> float:
    whole = sum(one.prompt_tokens for one in of)
    return sum(map(tokens, of)) / whole if whole else 0.0


def promise_errors(sent: Sequence[SentRequest]) -> list[float]:
    """|actual - promised| / actual of each time to a first token that was promised."""
    return [
        abs(one.ttft_s - one.promised_s) / one.ttft_s
        for one in sent
        if one.is_done and one.promised_s is not None and one.ttft_s > 0
    ]


def note_of(driven: Drive) -> str:
    """What a reader must know of the figures of a drive."""
    served = driven.served
    unfinished = sum(not one.is_done for one in served)
    notes = [f"{len(driven.sent):,} requests"]
    if driven.refused():
        notes.append(f"{driven.refused():.1%} refused, and in no time")
    if unfinished:
        notes.append(f"{unfinished:,} had no first token in the end, and count so far")
    notes.append(
        f"decisions p50 {1000 * percentile(driven.decision_s, 50):.1f} ms; sent late by"
        f" {1000 * driven.late_s:,.0f} ms at the most"
    )
    return "; ".join(notes)


def figures_of(name: str, driven: Drive) -> list[Figure]:
    """Of one way of routing."""
    served = driven.served
    figures = [
        Figure(
            name=f"{name}: hit rate",
            unit="%",
            runs=[100 * driven.hit_rate],
            note=note_of(driven),
            limited=int(driven.late_s > LATE_S),
        ),
        _figure(f"{name}: hit rate, promised", "%", 100 * driven.promised_hit_rate),
        _figure(f"{name}: TTFT, mean", "ms", 1000 * driven.mean_ttft_s),
        _figure(f"{name}: TTFT, p50", "ms", 1000 * driven.ttft_s(50)),
        _figure(f"{name}: TTFT, p99", "ms", 1000 * driven.ttft_s(99)),
    ]
    if driven.refused():
        figures.append(_figure(f"{name}: refused", "%", 100 * driven.refused()))
    promised = [one.promised_s for one in served if one.is_done and one.promised_s is not None]
    if promised:
        done = fmean(one.ttft_s for one in served if one.is_done)
        note = f"{1000 * done:,.0f} ms came"
        figures.append(_figure(f"{name}: TTFT, mean promised", "ms", 1000 * fmean(promised), note))
    return figures


def _figure(name: str, unit: str, value: float, note: str = "") -> Figure:
    return Figure(name=name, unit=unit, runs=[value], note=note)
