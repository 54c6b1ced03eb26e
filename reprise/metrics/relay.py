"""What a relay has handed on, and to whom it gave nothing."""

from typing import TYPE_CHECKING, Final

from reprise.metrics.family import Family, counter, counters, gauge, gauges

if TYPE_CHECKING:
    from bridge.relay.relay import Relay

_ENGINE: Final = ("engine",)

RELAY: Final[tuple[Family["Relay"], ...]] = (
    gauges(
        "reprise_relay_connected",
        "1 while the relay has a link to the engine, so that bridges can have one to the relay.",
        _ENGINE,
        lambda relay: [((one.engine.endpoint,), one.has_link) for one in relay.publications],
    ),
    counters(
        "reprise_relay_links",
        "Links to the engine that have come up.",
        _ENGINE,
        lambda relay: [((one.engine.endpoint,), one.links) for one in relay.publications],
    ),
    counters(
        "reprise_relay_messages",
        "Messages of the engine that were handed on.",
        _ENGINE,
        lambda relay: [((one.engine.endpoint,), one.messages) for one in relay.publications],
    ),
    counters(
        "reprise_relay_bytes",
        "Bytes of messages of the engine that were handed on.",
        _ENGINE,
        lambda relay: [((one.engine.endpoint,), one.sent_bytes) for one in relay.publications],
    ),
    counters(
        "reprise_relay_dropped_bridges",
        "Links of bridges that were ended because they took too little of what the engine sends.",
        _ENGINE,
        lambda relay: [((one.engine.endpoint,), one.dropped_bridges) for one in relay.publications],
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
