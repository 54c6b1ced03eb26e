"""Of LMCache's controller: its workers, what they hold, and what became of what they sent."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from lmcache_adapter.controller.counters import LmcacheCounters
    from lmcache_adapter.coordinator.service import CoordinatorService
    from lmcache_adapter.topic.consumer import TopicService


class Lmcache(NamedTuple):
    """What is shown."""

    counters: "LmcacheCounters"
    dropped: Mapping[str, int]


def _size(name: str) -> "Family[Lmcache]":
    return gauge(
        f"reprise_lmcache_{name}", _SIZES[name], lambda found: found.counters.sizes.get(name, 0)
    )


_SIZES: Final = {
    "workers": "LMCache workers that are registered.",
    "whole": "LMCache workers of which all that they hold is known.",
    "syncing": "LMCache workers that are sending all that they hold, their caches frozen.",
    "keys": "Chunks that LMCache workers hold, at all locations.",
}


def _controller(
    name: str, text: str, value: "Callable[[LmcacheCounters], float]"
) -> Family[Lmcache]:
    """As LMCache's own controller names it, for dashboards that were made for that one."""
    return gauge(f"lmcache:cache_controller_{name}", text, lambda found: value(found.counters))


def _progress(counters: "LmcacheCounters") -> float:
    return counters.sizes.get("whole", 0) / max(counters.sizes.get("workers", 0), 1)


_CONTROLLER: Final = (
    _controller(
        "kv_pool_keys_count",
        "Chunks that LMCache workers hold; as reprise_lmcache_keys.",
        lambda counters: counters.sizes.get("keys", 0),
    ),
    _controller(
        "registered_workers_count",
        "LMCache workers that are registered; as reprise_lmcache_workers.",
        lambda counters: counters.sizes.get("workers", 0),
    ),
    _controller(
        "pull_socket_message_count",
        "Messages that LMCache workers have pushed, of all types.",
        lambda counters: counters.pushed,
    ),
    _controller(
        "reply_socket_message_count",
        "Requests of LMCache workers, of all types, heartbeats among them.",
        lambda counters: counters.asked,
    ),
    _controller(
        "kv_op_seq_discontinuity_count",
        "Places at which operations are missing; as reprise_lmcache_jumps_total.",
        lambda counters: counters.jumps,
    ),
    _controller(
        "full_sync_workers_syncing",
        "LMCache workers that are sending all that they hold; as reprise_lmcache_syncing.",
        lambda counters: counters.sizes.get("syncing", 0),
    ),
    _controller(
        "full_sync_workers_completed",
        "LMCache workers of which all that they hold is known; as reprise_lmcache_whole.",
        lambda counters: counters.sizes.get("whole", 0),
    ),
    _controller(
        "full_sync_global_progress",
        "The share of LMCache workers of which all that they hold is known, 0 to 1.",
        _progress,
    ),
    _controller(
        "full_sync_missing_batches_total",
        "Batches of full syncs under way that have not come yet.",
        lambda counters: counters.sizes.get("missing_batches", 0),
    ),
)

LMCACHE: Final[tuple[Family[Lmcache], ...]] = (
    *_CONTROLLER,
    *map(_size, _SIZES),
    counters(
        "reprise_lmcache_messages",
        "Messages of LMCache workers, by type.",
        ("type",),
        lambda found: by_label(dict(found.counters.messages)),
    ),
    counter(
        "reprise_lmcache_operations",
        "Chunks that LMCache workers said to have stored or evicted, full syncs not counted.",
        lambda found: found.counters.operations,
    ),
    counter(
        "reprise_lmcache_jumps",
        "Places at which operations of LMCache workers are missing.",
        lambda found: found.counters.jumps,
    ),
    counter(
        "reprise_lmcache_syncs_asked",
        "Full syncs that LMCache workers were asked for.",
        lambda found: found.counters.syncs_asked,
    ),
    counter(
        "reprise_lmcache_syncs_whole",
        "Full syncs of LMCache workers after which all that they hold was known.",
        lambda found: found.counters.syncs_whole,
    ),
    counter(
        "reprise_lmcache_lookups",
        "Look-ups of LMCache workers for chunks that others hold.",
        lambda found: found.counters.lookups,
    ),
    counter(
        "reprise_lmcache_lookup_hits",
        "Look-ups of LMCache workers that were answered by another worker's name.",
        lambda found: found.counters.lookup_hits,
    ),
    counters(
        "reprise_lmcache_dropped",
        "Messages, links, operations, keys and records of LMCache that were dropped, by reason.",
        ("reason",),
        lambda found: by_label(found.dropped),
    ),
)


_SERVER_SIZES: Final = {
    "servers": "LMCache servers that are known {by}.",
    "publishers": "Models, salts and ranks of these LMCache servers, each a publisher.",
    "degraded": "Those of these publishers of which batches were missed.",
    "keys": "Chunks that LMCache's servers say {by} that they hold, at each backend and group.",
}


def _families(name: str, by: str) -> tuple[Family[Any], ...]:
    """Of servers of LMCache's multi-process mode, by the way on which their batches come."""

    def size(of: str) -> Family[Any]:
        help_text = _SERVER_SIZES[of].format(by=by)
        return gauge(f"reprise_lmcache_{name}_{of}", help_text, lambda it: it.servers.sizes[of])

    return (
        *map(size, _SERVER_SIZES),
        counter(
            f"reprise_lmcache_{name}_batches",
            f"Batches of LMCache's servers {by} that counted.",
            lambda it: it.servers.batches,
        ),
        counter(
            f"reprise_lmcache_{name}_gaps",
            f"Places at which batches or events of LMCache's servers {by} are missing.",
            lambda it: it.servers.gaps,
        ),
        counters(
            f"reprise_lmcache_{name}_dropped",
            f"Values, batches and chunks of LMCache's servers {by} that were dropped, by reason.",
            ("reason",),
            lambda it: by_label(dict(it.dropped)),
        ),
    )


LMCACHE_TOPIC: Final["tuple[Family[TopicService], ...]"] = (
    *_families("topic", "by its topic"),
    gauge(
        "reprise_lmcache_topic_current",
        "Whether all that LMCache's topic had was applied, a moment ago.",
        lambda topic: topic.servers.is_current,
    ),
)

LMCACHE_COORDINATOR: Final["tuple[Family[CoordinatorService], ...]"] = (
    *_families("coordinator", "by the coordinator"),
    gauge(
        "reprise_lmcache_coordinator_members",
        "LMCache servers that are registered at the coordinator.",
        lambda coordinator: len(coordinator.members),
    ),
    counter(
        "reprise_lmcache_coordinator_departed",
        "Members of LMCache's coordinator that left without saying so.",
        lambda coordinator: coordinator.departed,
    ),
)
