"""Decisions of `/route`: what is under way, and the routing log, of both forms."""

from typing import Final, Protocol

from query_api.routing.folded import FoldedRouting
from query_api.routing.live import LiveLoad
from query_api.routing.queue import RoutingQueue
from reprise.metrics.family import Family, Samples, by_label, counter, counters, gauge


class RoutingState(Protocol):
    """What has the routing log: on the disk, or in Kafka."""

    @property
    def queue(self) -> RoutingQueue:
        """What is to be written."""
        ...

    @property
    def live(self) -> LiveLoad:
        """What is under way, as far as this service knows."""
        ...

    @property
    def folded(self) -> FoldedRouting:
        """What the log says."""
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


def _dropped(state: RoutingState) -> Samples:
    counts = state.live.counts()
    return [
        (("no_room",), counts["overflowed"]),
        (("queue_full",), state.queue.dropped),
        (("unknown_decision",), counts["unknown"]),
        (("unwritten",), state.unwritten),
    ]


def _forgotten(state: RoutingState) -> Samples:
    """Of everything that is bounded, so that each is there before anything is forgotten."""
    here = state.live.forgotten
    counts = {
        "answers": here["answers"],
        "selections": here["selections"],
        "samples": state.live.counts()["samples_dropped"],
    }
    return by_label(counts | state.folded.read(lambda fold: fold.forgotten))


ROUTING: Final[tuple[Family[RoutingState], ...]] = (
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
    counter(
        "reprise_routing_expired",
        "Routed requests whose end was not reported in time, and that count as ended.",
        lambda state: state.live.counts()["expired"],
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
        " promises_crowded), hot_scopes, predicted prefixes, sessions, and classes and models whose"
        " times were learned (estimates).",
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
)
