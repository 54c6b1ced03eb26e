"""Decisions of `/route`: what is under way, and the routing log, of both forms."""

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Final, Protocol

from routing.observed.promise_totals import RATIO_BOUNDS, SHARE_BOUNDS, Totals
from schemas.metric_family import (
    Family,
    Histogram,
    Samples,
    by_label,
    counter,
    counters,
    gauge,
)

if TYPE_CHECKING:
    from routing.decisions.folded_routing import FoldedRouting
    from routing.decisions.live_load import LiveLoad
    from routing.decisions.queue import RoutingQueue


class RoutingLogState(Protocol):
    """What has the routing log: on the disk, or in Kafka."""

    @property
    def queue(self) -> "RoutingQueue":
        """What is to be written."""
        ...

    @property
    def live(self) -> "LiveLoad":
        """What is under way, as far as this service knows."""
        ...

    @property
    def folded(self) -> "FoldedRouting":
        """What the log says."""
        ...

    def now(self) -> float:
        """Unix seconds."""
        ...

    @property
    def written(self) -> int:
        """Items that are in the log, of this run."""
        ...

    @property
    def unwritten(self) -> int:
        """Items that were taken from the queue and could not be written."""
        ...

    @property
    def skipped(self) -> int:
        """Records that cannot be used."""
        ...

    @property
    def lag(self) -> int:
        """Records of the log that are not folded yet, as far as that is known."""
        ...


def _dropped(state: RoutingLogState) -> Samples:
    counts = state.live.counts()
    return [
        (("no_room",), counts["overflowed"]),
        (("queue_full",), state.queue.dropped),
        (("unknown_decision",), counts["unknown"]),
        (("unwritten",), state.unwritten),
    ]


def _forgotten(state: RoutingLogState) -> Samples:
    """Of everything that is bounded, so that each is there before anything is forgotten."""
    here = state.live.forgotten
    counts = {
        "answers": here["answers"],
        "selections": here["selections"],
        "samples": state.live.counts()["samples_dropped"],
    }
    return by_label(counts | state.folded.read(lambda fold: fold.forgotten))


def _by_kernel(state: RoutingLogState) -> Samples:
    names = ("decided", "repeated", "queue_full", "reported", "rested")
    return [((name,), count) for name, count in zip(names, state.live.kernel_counts(), strict=True)]


def _noted(state: RoutingLogState) -> Totals:
    """Sums over all promises that this service has folded, as they are now."""
    return state.folded.read(lambda fold: deepcopy(fold.observations.totals.noted))


def _by_name(state: RoutingLogState, **values: Callable[[Totals], int]) -> Samples:
    noted = _noted(state)
    return [((name,), float(value(noted))) for name, value in values.items()]


def _fields(state: RoutingLogState, *names: str) -> Samples:
    noted = _noted(state)
    return [((name,), float(getattr(noted, name))) for name in names]


def _lost(state: RoutingLogState) -> Samples:
    noted = _noted(state)
    return [
        (("workload", ""), noted.workload),
        (("routing", "elsewhere"), noted.routing - noted.not_fetched),
        (("routing", "not_fetched"), noted.not_fetched),
        (("index", "stale"), noted.stale),
        (("index", "degraded"), noted.degraded),
        (("index", "unconfirmed"), noted.unconfirmed),
        (("index", "evicted"), noted.evicted),
        (("index", "predicted"), noted.not_predicted),
    ]


ROUTING: Final[tuple[Family[RoutingLogState] | Histogram[RoutingLogState], ...]] = (
    gauge(
        "reprise_routing_under_way",
        "Requests that were routed and have neither ended nor expired, as far as this service"
        " knows.",
        lambda state: state.live.counts()["under_way"],
    ),
    gauge(
        "reprise_routing_sampled_targets",
        "Ranks of instances whose load was posted, scraped or sent with a request.",
        lambda state: state.live.counts()["samples"],
    ),
    gauge(
        "reprise_routing_failing_targets",
        "Ranks of instances that fail what they are sent, as clients report, and get single"
        " requests on trial alone.",
        lambda state: len(state.live.failing(state.now())),
    ),
    counter(
        "reprise_routing_left_out",
        "How often a rank of an instance was left out since what it was sent failed.",
        lambda state: state.folded.read(lambda fold: fold.failures.left_out),
    ),
    counter(
        "reprise_routing_expired",
        "Routed requests whose end was not reported in time, and that count as ended.",
        lambda state: state.live.counts()["expired"],
    ),
    counter(
        "reprise_routing_released",
        "Routed requests whose instance was unregistered before their end, and that count as"
        " ended.",
        lambda state: state.live.counts()["released"],
    ),
    counter(
        "reprise_routing_repeated",
        "Reports to this service that had been made before, or came after the request's end.",
        lambda state: state.live.counts()["repeated"],
    ),
    gauge(
        "reprise_routing_waiting",
        "Decisions, reports and load samples that wait to be written to the routing log.",
        lambda state: len(state.queue),
    ),
    counter(
        "reprise_routing_written",
        "Decisions, reports and load samples that were written to the routing log.",
        lambda state: state.written,
    ),
    counters(
        "reprise_routing_dropped",
        "Decisions, reports and load samples that were dropped: queue_full and unwritten are not"
        " in the routing log and unknown to other replicas; no_room found too many requests under"
        " way to be booked; unknown_decision are reports whose decision never came.",
        ("reason",),
        _dropped,
    ),
    counters(
        "reprise_routing_forgotten",
        "What routing remembers and had to give up for want of room: answers (a repeated request is"
        " decided anew), selections of the select service (404), load samples, open promises"
        " (counted as unreported), rows of promises and notes without one (promise_rows,"
        " promises_crowded), hot_scopes, predicted prefixes, sessions, classes and models whose"
        " times were learned (estimates), and engines that failed something (failures).",
        ("of",),
        _forgotten,
    ),
    counter(
        "reprise_routing_skipped",
        "Records of the routing log that cannot be used; named in the log by offset.",
        lambda state: state.skipped,
    ),
    gauge(
        "reprise_routing_folded_offset",
        "Offset of the last record of the routing log that was folded; -1 for none.",
        lambda state: state.folded.offset,
    ),
    gauge(
        "reprise_routing_lag_records",
        "Records of the routing log that are not folded yet.",
        lambda state: state.lag,
    ),
    counters(
        "reprise_routing_decisions",
        "Decisions that were folded from the routing log, by whether somebody was chosen to compute"
        " the prompt: chosen or refused.",
        ("outcome",),
        lambda state: _by_name(
            state,
            chosen=lambda noted: noted.decisions - noted.refused,
            refused=lambda noted: noted.refused,
        ),
    ),
    counters(
        "reprise_routing_kernel_decisions",
        "Plain requests to be routed, without Python: decided, repeated (the answer of before was"
        " given again), or queue_full (left to Python, since too many decisions waited to be"
        " booked). And reported: reports that were taken; rested: requests and reports that waited"
        " until others were booked.",
        ("outcome",),
        _by_kernel,
    ),
    counters(
        "reprise_routing_outcomes",
        "What became of routed requests, as told: reported (the engine's hits are known),"
        " unreported (they ended or expired without), moved, failed, cancelled, miscounted (the"
        " engine's prompt has another length).",
        ("outcome",),
        lambda state: _fields(
            state, "reported", "unreported", "moved", "failed", "cancelled", "miscounted"
        ),
    ),
    counters(
        "reprise_routing_tokens",
        "Tokens of prompts of which an engine told its hits: prompt (all), promised (said to be"
        " cached), actual (found to be), predicted (promised by decisions alone), fetched,"
        " unpromised (found, and not promised).",
        ("kind",),
        lambda state: _fields(
            state, "prompt", "promised", "actual", "predicted", "fetched", "unpromised"
        ),
    ),
    counters(
        "reprise_routing_lost_tokens",
        "Tokens that were computed again, by whose loss it is and why: of the workload (nobody held"
        " them), of routing (elsewhere, not_fetched), of the index (it said that they were held:"
        " stale, degraded, unconfirmed, evicted, predicted).",
        ("share", "cause"),
        _lost,
    ),
    counters(
        "reprise_routing_ttft_seconds",
        "Times to the first token, summed: promised, actual, and error: the differences, whichever"
        " of the two was longer.",
        ("of",),
        lambda state: [
            ((of,), micro / 1e6)
            for (of,), micro in _by_name(
                state,
                promised=lambda noted: noted.ttft_promised_us,
                actual=lambda noted: noted.ttft_actual_us,
                error=lambda noted: noted.ttft_error_us,
            )
        ],
    ),
    counters(
        "reprise_routing_timed",
        "Requests of which the time to the first token was promised and told, by whether it was"
        " within the 90th percentile promised.",
        ("in_p90",),
        lambda state: _by_name(
            state, yes=lambda noted: noted.in_p90, no=lambda noted: noted.timed - noted.in_p90
        ),
    ),
    Histogram(
        "reprise_routing_ttft_ratio",
        "The actual time to the first token, divided by the time that was promised.",
        RATIO_BOUNDS,
        lambda state: _noted(state).ttft_ratios,
    ),
    Histogram(
        "reprise_routing_over_promise",
        "The share of a prompt that was promised to be cached, and was not.",
        SHARE_BOUNDS,
        lambda state: _noted(state).over_promises,
    ),
)
