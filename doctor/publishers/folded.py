"""What a service would have made of a capture: the bridge's sequencer and the fold of the table,
and what the doctor finds in that.

Whoever would follow a publisher would confirm it: so what is doubted here is what its events do not
say, or say wrong, and no trouble of a link.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from bridge.publisher.counters import PublisherCounters
from doctor.diagnoses import InstanceFindings, diagnose
from doctor.examination import Patient, gpu_share
from query_api.ports import ServiceView
from replay.as_records import PARTITION, CaptureRecords
from replay.capture.reader import Capture
from replay.folding import ReplayedTable, fold_capture
from routing.observed.promise_totals import NOT_SERVED
from schemas.answer_states import Standing
from schemas.events import TOKEN_HASH_SEED
from schemas.identities import ModelContext, is_hidden
from schemas.positions import Confirmation, PublisherState
from schemas.progress import StopCheck, never
from schemas.registration import Registration
from streams.kernel import array_packer, open_kernel
from streams.table.scope_states import ConfirmationSource

_BRIDGE: Final = "check"
_FRESH: Final = {ConfirmationSource(PARTITION, _BRIDGE): math.inf}
_LATER_S: Final = 3600.0  # what is doubted does not pass by itself


class FoldedPublisher(NamedTuple):
    """What became of one publisher.

    Attributes:
        standing: how far answers about it could be trusted.
        entries: blocks that answers would count.
        blocks: of all publishers, what the kernel counted, by outcome.
    """

    counters: PublisherCounters
    state: PublisherState
    standing: Standing
    entries: int
    blocks: Mapping[str, int]
    found: InstanceFindings


def fold(
    capture: Capture,
    registrations: Mapping[int, Registration],
    now: float,
    stopped: StopCheck = never,
) -> dict[int, FoldedPublisher]:
    """By lane, what a service would have known of its publisher.

    Args:
        registrations: of all lanes.
        now: Unix seconds, behind all that was captured.

    Raises:
        CaptureError: the capture cannot be read.
    """
    records = CaptureRecords(capture, array_packer(), registrations)
    table = ReplayedTable(open_kernel(TOKEN_HASH_SEED), records)
    fold_capture(records, table, total=None, stopped=stopped)
    return {
        lane: _of_publisher(registration, table, records.counters[registration.publisher], now)
        for lane, registration in registrations.items()
    }


def _of_publisher(
    registration: Registration, table: ReplayedTable, counters: PublisherCounters, now: float
) -> FoldedPublisher:
    publisher = registration.publisher
    folded = table.publishers.get(publisher, PublisherState())
    said = Confirmation(bridge=_BRIDGE, troubles=counters.troubles(""))
    state = msgspec.structs.replace(folded, confirmation=said)
    table.states.put(publisher, state, PARTITION)
    standing = table.states.standing(publisher, _FRESH, now)
    kernel = table.kernel
    contexts = [
        (context, view.entries)
        for view in kernel.contexts()
        if (context := ModelContext(*view.context)).stream == registration.stream
        and not is_hidden(context.lora_name)
    ]
    entries = sum(count for _, count in contexts)
    adapters = {context.lora_name for context, count in contexts if count} - {""}
    patient = Patient(
        registration.stream,
        [ServiceView(registration, state, None, standing)],
        entries,
        partial(gpu_share, kernel, contexts),
        registration.kv_capacity_tokens // registration.block_size,
        frozenset(),
        (),
        tuple(sorted(adapters)),
        NOT_SERVED,
    )
    found = diagnose(patient, now + _LATER_S)
    return FoldedPublisher(counters, state, standing, entries, table.kernel.counters(), found)
