"""By publisher: what this process received, and what its table has folded."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from schemas.answer_states import Standing
from schemas.identities import PublisherKey
from schemas.metric_family import (
    Family,
    Samples,
    by_label,
    counter,
    counters,
    gauge,
    gauges,
)
from schemas.positions import Cursor, PublisherState
from streams.table.ledger import Kind

if TYPE_CHECKING:
    from bridge.engine_http.inquiries import EngineSource
    from bridge.publisher.counters import PublisherCounters
    from bridge.publisher.ports import ReplaySource
    from bridge.publisher.publisher import Publisher
    from bridge.pump import Pump
    from bridge.sockets.inbox import Inbox
    from streams.table.ledger import Ledger

_LABELS: Final = ("tenant", "instance", "model", "dp_rank")
_NO_PUBLISHER: Final = ("", "", "", "")


def _labels(publisher: PublisherKey) -> tuple[str, str, str, str]:
    stream = publisher.stream
    return (stream.tenant_id, stream.instance_id, stream.model_name, str(publisher.dp_rank))


class ReceivedTraffic(NamedTuple):
    """What came in by the sockets.

    Attributes:
        counters, cursors, connected: of each publisher that is followed.
        links: how often the link to each of them has come up.
        states: of each publisher, where the role has states.
        dropped: what was dropped, by publisher and reason.
        unregistered: messages of publishers that are not followed.
        held_bytes: of batches that wait for a replay.
    """

    counters: "Mapping[PublisherKey, PublisherCounters]"
    cursors: Mapping[PublisherKey, Cursor]
    connected: Mapping[PublisherKey, bool]
    links: Mapping[PublisherKey, int]
    states: Mapping[PublisherKey, str]
    dropped: Mapping[tuple[PublisherKey, str], int]
    unregistered: int
    held_bytes: int
    inbox: "Inbox"


def received(
    pump: "Pump",
    *,
    dropped_later: Mapping[tuple[PublisherKey, str], int] | None = None,
    states: Mapping[PublisherKey, str] | None = None,
) -> ReceivedTraffic:
    """Reads what there is now. Cost O(publishers).

    Args:
        dropped_later: what was dropped behind the sequencer.
    """
    found, inbox, receiver = pump.counters(), pump.inbox, pump.engines.receiver
    dropped = Counter(dropped_later or {})
    cursors: dict[PublisherKey, Cursor] = {}
    for publisher, counted in found.items():
        for reason, count in dict(counted.dropped).items():
            dropped[publisher, reason] += count
        followed = pump.followed.get(publisher)
        if followed is not None:  # another thread may just have removed it
            cursors[publisher] = followed.sequencer.stream.cursor
    for publisher, count in inbox.dropped().items():
        dropped[publisher, "inbox_full"] += count
    return ReceivedTraffic(
        counters=found,
        cursors=cursors,
        connected={publisher: receiver.connected(publisher) for publisher in found},
        links={publisher: receiver.links(publisher) for publisher in found},
        states=states or {},
        dropped=dropped,
        unregistered=pump.intake.unregistered_messages,
        held_bytes=pump.follower.totals.held_bytes,
        inbox=inbox,
    )


def _counted(value: "Callable[[PublisherCounters], int]") -> Callable[[ReceivedTraffic], Samples]:
    def samples(found: ReceivedTraffic) -> Samples:
        return [
            (_labels(publisher), float(value(counted)))
            for publisher, counted in found.counters.items()
        ]

    return samples


def _passed_over(found: ReceivedTraffic) -> Samples:
    for publisher, counted in found.counters.items():
        for reason, count in dict(counted.passed_over).items():  # another thread counts
            yield (*_labels(publisher), reason), count


def _dropped(found: ReceivedTraffic) -> Samples:
    for (publisher, reason), count in sorted(found.dropped.items()):
        yield (*_labels(publisher), reason), count
    if found.unregistered:
        yield (*_NO_PUBLISHER, "unregistered"), found.unregistered


RECEIVED: Final[tuple[Family[ReceivedTraffic], ...]] = (
    counters(
        "reprise_bridge_messages",
        "Messages received from the publisher, usable or not.",
        _LABELS,
        _counted(lambda counted: counted.messages),
    ),
    counters(
        "reprise_bridge_batches",
        "Batches of the publisher that were put into records.",
        _LABELS,
        _counted(lambda counted: counted.batches),
    ),
    counters(
        "reprise_bridge_events",
        "Events of the publisher that were put into records.",
        _LABELS,
        _counted(lambda counted: counted.events),
    ),
    counters(
        "reprise_bridge_duplicates",
        "Batches that the publisher delivered more than once.",
        _LABELS,
        _counted(lambda counted: counted.duplicates),
    ),
    counters(
        "reprise_bridge_gaps",
        "Places in the publisher's sequence where batches are missing.",
        _LABELS,
        _counted(lambda counted: counted.gaps),
    ),
    counters(
        "reprise_bridge_lost_batches",
        "Batches of the publisher that were never received.",
        _LABELS,
        _counted(lambda counted: counted.lost_batches),
    ),
    counters(
        "reprise_bridge_restarts",
        "Restarts of the publisher, detected by its sequence numbers.",
        _LABELS,
        _counted(lambda counted: counted.restarts),
    ),
    counters(
        "reprise_bridge_dropped",
        "Messages, batches, events and records that were dropped, by reason.",
        (*_LABELS, "reason"),
        _dropped,
    ),
    counters(
        "reprise_bridge_passed_over",
        "Events of a pool that are about something else than the publisher's blocks, by reason.",
        (*_LABELS, "reason"),
        _passed_over,
    ),
    gauges(
        "reprise_publisher_connected",
        "1 while the link to the publisher is up.",
        _LABELS,
        lambda found: [
            (_labels(publisher), float(up)) for publisher, up in found.connected.items()
        ],
    ),
    counters(
        "reprise_bridge_links",
        "How often the link to the publisher has come up.",
        _LABELS,
        lambda found: [(_labels(publisher), links) for publisher, links in found.links.items()],
    ),
    gauges(
        "reprise_publisher_received_sequence",
        "Sequence number of the last batch received from the publisher.",
        _LABELS,
        lambda found: [
            (_labels(publisher), cursor.sequence) for publisher, cursor in found.cursors.items()
        ],
    ),
    gauges(
        "reprise_publisher_state",
        "1 for the state of the publisher at its bridge.",
        (*_LABELS, "state"),
        lambda found: [
            ((*_labels(publisher), state), 1.0) for publisher, state in found.states.items()
        ],
    ),
    gauge(
        "reprise_inbox_messages",
        "Messages received and not yet decoded.",
        lambda found: len(found.inbox),
    ),
    gauge(
        "reprise_inbox_bytes",
        "Bytes of messages received and not yet decoded.",
        lambda found: found.inbox.size_bytes,
    ),
    gauge(
        "reprise_held_bytes",
        "Bytes of batches that wait in memory for a replay.",
        lambda found: found.held_bytes,
    ),
)

REPLAY: Final["tuple[Family[ReplaySource], ...]"] = (
    counter(
        "reprise_bridge_replay_requests",
        "Requests for missing batches sent to replay sockets.",
        lambda replayer: replayer.requests,
    ),
    counter(
        "reprise_bridge_replayed_batches",
        "Missing batches recovered by replay.",
        lambda replayer: replayer.replayed_batches,
    ),
)

ACTIVITIES: Final["tuple[Family[Mapping[PublisherKey, Publisher]], ...]"] = (
    gauges(
        "reprise_publisher_activity",
        "1 for what the publisher does: active, silent, disconnected or replaying.",
        (*_LABELS, "activity"),
        lambda found: [
            ((*_labels(publisher), followed.activity.kind.value), 1.0)
            for publisher, followed in found.items()
        ],
    ),
    gauges(
        "reprise_publisher_activity_since_seconds",
        "Unix time since when the publisher has done that; 0 where it is not known.",
        _LABELS,
        lambda found: [
            (_labels(publisher), followed.activity.since) for publisher, followed in found.items()
        ],
    ),
)

ENGINE_HTTP: Final["tuple[Family[EngineSource], ...]"] = (
    counters(
        "reprise_bridge_http_requests",
        "Requests to engines' HTTP addresses, by outcome: answered, refused (500 and above) or"
        " silent.",
        ("outcome",),
        lambda source: by_label(dict(source.requests)),
    ),
)

Standings = Mapping[PublisherKey, Standing]

STANDINGS: Final[tuple[Family[Standings], ...]] = (
    gauges(
        "reprise_publisher_answer_state",
        "1 for how far answers of the publisher can be trusted, and why they are not exact.",
        (*_LABELS, "state", "reason"),
        lambda found: [
            ((*_labels(publisher), standing.state.value, str(standing.reason)), 1.0)
            for publisher, standing in found.items()
        ],
    ),
    gauges(
        "reprise_publisher_answer_state_since_seconds",
        "Unix time since when the publisher has had that state; 0 where it is not known.",
        _LABELS,
        lambda found: [
            (_labels(publisher), standing.since) for publisher, standing in found.items()
        ],
    ),
)

PublisherStates = Mapping[PublisherKey, PublisherState]
KnownLedgers: TypeAlias = "Mapping[PublisherKey, Ledger]"


def _ledger_batches(found: KnownLedgers) -> Samples:
    for publisher, ledger in found.items():
        for kind in Kind:
            for cause, batches in sorted(ledger.totals(kind).items()):
                yield (*_labels(publisher), kind.value, cause), batches


LEDGERS: Final[tuple[Family[KnownLedgers], ...]] = (
    counters(
        "reprise_ledger_batches",
        "Batches of the publisher that were lost, repaired by a replay, or incomplete, by cause.",
        (*_LABELS, "kind", "cause"),
        _ledger_batches,
    ),
)

FOLDED: Final[tuple[Family[PublisherStates], ...]] = (
    gauges(
        "reprise_publisher_degraded",
        "1 while batches of the publisher are known to be missing from the table.",
        _LABELS,
        lambda found: [
            (_labels(publisher), float(state.degraded_since is not None))
            for publisher, state in found.items()
        ],
    ),
    gauges(
        "reprise_publisher_left_out_blocks",
        "Blocks that the publisher has announced and holds, and no answer counts, by reason;"
        " of attention_only all that it has announced since it began, of unheld_removed all that it"
        " has removed and did not hold.",
        (*_LABELS, "reason"),
        lambda found: [
            ((*_labels(publisher), reason), float(blocks))
            for publisher, state in found.items()
            for reason, blocks in state.uncounted.items()
        ],
    ),
    gauges(
        "reprise_publisher_folded_sequence",
        "Sequence number of the publisher's last batch in the table.",
        _LABELS,
        lambda found: [(_labels(publisher), state.sequence) for publisher, state in found.items()],
    ),
    gauges(
        "reprise_publisher_incarnation",
        "Incarnation of the publisher in the table: one more with each restart.",
        _LABELS,
        lambda found: [
            (_labels(publisher), state.incarnation) for publisher, state in found.items()
        ],
    ),
)
