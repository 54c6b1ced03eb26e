"""Segments of memory: what is known of them, and what a look at a directory comes to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from schemas.memory_segments import SegmentStanding
from schemas.metric_family import Family, by_label, counter, gauge, gauges

if TYPE_CHECKING:
    from bridge.memory.watch import MemoryWatch
    from query_api.ports import SegmentView

Segments: TypeAlias = "Sequence[SegmentView]"

_LABELS: Final = ("host", "segment")


def _known(found: Segments) -> "list[SegmentView]":
    """Those that have not been removed: the memory of the others is free."""
    return [one for one in found if one.standing is not SegmentStanding.GONE]


SEGMENTS: Final[tuple[Family[Segments], ...]] = (
    gauges(
        "reprise_memory_total_bytes",
        "Limit of the KV cache whose memory segment this is.",
        _LABELS,
        lambda found: [(one.key, one.state.total) for one in _known(found)],
    ),
    gauges(
        "reprise_memory_used_bytes",
        "Memory in use by the KV cache whose memory segment this is.",
        _LABELS,
        lambda found: [(one.key, one.state.used) for one in _known(found)],
    ),
    gauges(
        "reprise_memory_preallocated_bytes",
        "Memory reserved beside what is used by the KV cache whose memory segment this is.",
        _LABELS,
        lambda found: [(one.key, one.state.preallocated) for one in _known(found)],
    ),
    gauges(
        "reprise_memory_pressure",
        "Share of its limit that a KV cache has used or reserved; above 1 after the limit fell.",
        _LABELS,
        lambda found: [
            (one.key, one.state.pressure)
            for one in found
            if one.standing is SegmentStanding.LIVE  # the others' says nothing of now
        ],
    ),
    gauges(
        "reprise_memory_segment_state",
        "1 for what the numbers of the memory segment are worth now.",
        (*_LABELS, "state"),
        lambda found: [((*one.key, one.standing.value), 1.0) for one in found],
    ),
    gauges(
        "reprise_memory_segment_observed_seconds",
        "Unix time at which the memory segment was read last, by the clock of its host.",
        _LABELS,
        lambda found: [(one.key, one.state.observed_at) for one in found],
    ),
    gauges(
        "reprise_memory_segment_instance",
        "1 for each registration that names the memory segment.",
        (*_LABELS, "tenant", "model", "instance", "dp_rank"),
        lambda found: [
            (
                (*one.key, of.tenant_id, of.model_name, of.instance_id, str(of.dp_rank)),
                1.0,
            )
            for one in found
            for of in {
                (other.service_key, other.model_name): other for other in one.instances
            }.values()
        ],
    ),
)

LOOKS: Final["tuple[Family[MemoryWatch], ...]"] = (
    counter(
        "reprise_memory_looks",
        "Looks at the directory of memory segments.",
        lambda watch: watch.looks,
    ),
    counter(
        "reprise_memory_failed_looks",
        "Looks at the directory of memory segments that failed.",
        lambda watch: watch.failed_looks,
    ),
    counter(
        "reprise_memory_looks_seconds",
        "Seconds that looks at the directory of memory segments took.",
        lambda watch: watch.busy_s,
    ),
    counter(
        "reprise_memory_records",
        "Records of memory segments that were written into the log.",
        lambda watch: watch.poller.records,
    ),
    gauge(
        "reprise_memory_segments",
        "Memory segments that were there at the last look.",
        lambda watch: len(watch.names),
    ),
    gauges(
        "reprise_memory_files_skipped",
        "Files that were left out at the last look at memory segments, by reason.",
        ("reason",),
        lambda watch: by_label(watch.last.skipped),
    ),
)
