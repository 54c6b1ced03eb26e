"""What a relay has handed on, and to whom it gave nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, Samples, counter, counters, gauge, gauges

if TYPE_CHECKING:
    from bridge.relay.publication import Publication
    from bridge.relay.relay import Relay

_ENGINE: Final = ("engine",)


def _by_engine(value: "Callable[[Publication], float]") -> "Callable[[Relay], Samples]":
    return lambda relay: [((one.engine.endpoint,), value(one)) for one in relay.publications]


RELAY: Final[tuple[Family["Relay"], ...]] = (
    gauges(
        "reprise_relay_connected",
        "1 while the relay has a link to the engine, so that bridges can have one to the relay.",
        _ENGINE,
        _by_engine(lambda one: one.has_link),
    ),
    counters(
        "reprise_relay_links",
        "Links to the engine that have come up.",
        _ENGINE,
        _by_engine(lambda one: one.links),
    ),
    counters(
        "reprise_relay_messages",
        "Messages of the engine that were handed on.",
        _ENGINE,
        _by_engine(lambda one: one.messages),
    ),
    counters(
        "reprise_relay_bytes",
        "Bytes of messages of the engine that were handed on.",
        _ENGINE,
        _by_engine(lambda one: one.sent_bytes),
    ),
    counters(
        "reprise_relay_dropped_bridges",
        "Links of bridges that were ended because they took too little of what the engine sends.",
        _ENGINE,
        _by_engine(lambda one: one.dropped_bridges),
    ),
    counter(
        "reprise_relay_replay_requests",
        "Replays that bridges have asked engines for.",
        lambda relay: sum(one.requests for one in relay.replays),
    ),
    counter(
        "reprise_relay_replayed_messages",
        "Messages of replays that were handed on.",
        lambda relay: sum(one.replies for one in relay.replays),
    ),
    counter(
        "reprise_relay_replays_given_up",
        "Replays that were ended before they had ended themselves, too many being under way.",
        lambda relay: sum(one.given_up for one in relay.replays),
    ),
    gauge(
        "reprise_relay_bridge_keys",
        "Public keys of bridges that may connect.",
        lambda relay: len(relay.bridge_keys),
    ),
    counter(
        "reprise_relay_refused",
        "Connections of bridges whose public key is not listed.",
        lambda relay: relay.bridge_keys.refused,
    ),
)
