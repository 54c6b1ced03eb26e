"""Stored events that only report hits: told from those that store, so that none is counted twice.

Where a request asks for it (`kv_cache_report_mode=full`, vLLM since 0.26), the engine announces the
cached blocks that the request uses once more: one `BlockStored` of each cache group, from the first
block of the prompt on, and then what it computes behind them. Removed they are once. No field says
which is which, and counted like blocks that were stored they would outlive their removal.

So it is known by registration, or by what the engine does. A *repeat* is a chain of two blocks or
more from the first of a prompt, on the GPU, all of which an earlier batch has announced, and no
event has removed since. An engine without that mode makes one only where it computes or loads what
it has: seldom, and then nothing follows behind it in the same batch. A repeat counts 1, one behind
which the same batch goes on 4, and each HIT_REPORT_FRESH other chains that begin a prompt take 1
off: at 8 the engine reports hits. What was counted twice until then, chains of one block and within
one batch included, is taken back by removals, and from then on all chains that begin a prompt are
marked `reported`: of these the kernel counts only blocks that are not held. At 0 the repeats were
second copies, and are no longer remembered.

Which blocks were announced is remembered of the last HIT_REPORT_BLOCKS_MAX; when they are more it
begins anew. A gap, a clear and a restart end it, too.

Pure; works on events as a record has them, in order, after duplicates are gone. What is here is the
specification of what the Rust kernel does.
"""

from typing import Final, NamedTuple, TypeGuard

import msgspec

from bridge.wire import vllm
from schemas.arrays import ArrayPacker, HitReports
from schemas.events import (
    SPARSE_SPEC_KINDS,
    BlockEvent,
    Cleared,
    Removed,
    Stored,
    decode_run,
    encode_run,
)
from schemas.identities import Medium
from schemas.limits import HIT_REPORT_BLOCKS_MAX, HIT_REPORT_FRESH, HIT_REPORT_SCORE
from schemas.registration import Registration

_CONTINUED: Final = 3
"""What a repeat counts beyond 1 where the same batch goes on behind it."""

_REPEAT_BLOCKS: Final = 2
"""A prompt of one block is computed again whatever of it is cached."""

_Key = tuple[int, bytes]
"""A block: its group, its hash."""


class Marked(NamedTuple):
    """Events of which some report hits.

    Attributes:
        run: all of them, as a record has them.
        added: how many there are more than before: removals.
        reports: how many were marked as reports.
    """

    run: bytes
    added: int
    reports: int


def open_hit_reports(registration: Registration, packer: ArrayPacker) -> HitReports | None:
    """What looks at the publisher's events, by the packer where it can; None where nothing has to.

    Args:
        registration: says it, or else the kind: no engine but vLLM has the mode.
        packer: the kernel's, or the specification.
    """
    mode = registration.kv_cache_report_mode
    if mode == "incremental" or (not mode and registration.kind != vllm.KIND):
        return None
    are_known = mode == "full"
    return packer.hit_reports(are_known) or PythonHitReports(are_known)


class PythonHitReports:
    """See `HitReports`."""

    def __init__(self, are_known: bool) -> None:
        self.are_known = are_known
        self.has_left_out = False
        # What was announced and not removed, with the batch that did so first.
        self._announced: dict[_Key, int] = {}
        self._repeats: list[tuple[int, bytes]] = []  # group and hashes of what was counted twice
        self._repeated = 0  # their blocks
        self._score = 0
        self._fresh = 0  # chains that begin a prompt and repeat nothing, since the score fell
        self._ends: set[_Key] = set()  # of the repeats in this batch, the last block
        self._sequence = -1

    def take(self, run: bytes, count: int, /) -> Marked | None:
        """See `HitReports`."""
        events, added, reports = [], 0, 0
        for event in decode_run(run, count):
            if self.are_known:
                marked = _marked(event)
                reports += marked is not event
                events.append(marked)
                continue
            events.append(event)
            self._look(event)
            if self._score >= HIT_REPORT_SCORE:
                taken_back = [
                    Removed(sequence=event.sequence, hashes=hashes, group=group)
                    for group, hashes in self._repeats
                ]
                events += taken_back
                added += len(taken_back)
                self._begin_anew()
                self.are_known = True
        return Marked(encode_run(events), added, reports) if added or reports else None

    def mark(self, run: bytes, count: int, /) -> Marked | None:
        """See `HitReports`."""
        if not self.are_known:
            self.has_left_out |= bool(self._repeats)
            self._begin_anew()
            return None
        events = decode_run(run, count)
        marked = [_marked(event) for event in events]
        reports = sum(one is not event for one, event in zip(marked, events, strict=True))
        return Marked(encode_run(marked), 0, reports) if reports else None

    def forget(self) -> None:
        """See `HitReports`."""
        self.has_left_out = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._announced.clear()
        self._repeats.clear()
        self._ends.clear()
        self._repeated = self._score = self._fresh = 0

    def _look(self, event: BlockEvent) -> None:
        if event.sequence != self._sequence:
            self._sequence = event.sequence
            self._ends.clear()
        if isinstance(event, Cleared):
            if event.medium in (None, Medium.GPU):
                self.forget()
        elif isinstance(event, Removed):
            if _is_of_gpu(event):
                for key in _keys(event):
                    self._announced.pop(key, None)
        elif _is_chain(event):
            self._look_at_chain(event, _keys(event))

    def _look_at_chain(self, event: Stored, keys: list[_Key]) -> None:
        if event.parent is not None:
            parent = (event.group, event.parent.to_bytes(8, "little"))
            if parent in self._ends:
                self._ends.discard(parent)
                self._score += _CONTINUED
        elif keys and all(key in self._announced for key in keys):
            if self._repeated + len(keys) <= HIT_REPORT_BLOCKS_MAX:
                self._repeated += len(keys)
                self._repeats.append((event.group, event.hashes))
            else:
                self.has_left_out = True
            if len(keys) >= _REPEAT_BLOCKS and all(map(self._is_known, keys)):
                self._score += 1
                self._ends.add(keys[-1])
            return
        elif len(keys) >= _REPEAT_BLOCKS:
            self._note_fresh()
        if len(self._announced) + len(keys) > HIT_REPORT_BLOCKS_MAX:
            self._announced.clear()
        if len(keys) <= HIT_REPORT_BLOCKS_MAX:
            for key in keys:
                self._announced.setdefault(key, event.sequence)

    def _note_fresh(self) -> None:
        self._fresh += 1
        if self._fresh < HIT_REPORT_FRESH:
            return
        self._fresh, self._score = 0, max(self._score - 1, 0)
        if not self._score:
            self.has_left_out |= bool(self._repeats)
            self._repeats.clear()
            self._repeated = 0

    def _is_known(self, key: _Key) -> bool:
        """Whether an earlier batch has announced it."""
        return self._announced[key] != self._sequence


def _keys(event: Stored | Removed) -> list[_Key]:
    hashes = event.hashes
    return [(event.group, hashes[at : at + 8]) for at in range(0, len(hashes) - 7, 8)]


def _is_of_gpu(event: Stored | Removed) -> bool:
    return event.medium is Medium.GPU and not event.shared


def _is_chain(event: BlockEvent) -> TypeGuard[Stored]:
    """Whether it stores blocks by their tokens, in a group that forms a prefix, on the GPU."""
    return (
        isinstance(event, Stored)
        and bool(event.tokens)
        and not event.reported
        and not event.by_hash
        and not event.token_hashes
        and event.spec_kind not in SPARSE_SPEC_KINDS
        and _is_of_gpu(event)
    )


def _marked(event: BlockEvent) -> BlockEvent:
    """The event as a report where it begins a prompt."""
    if _is_chain(event) and event.parent is None:
        return msgspec.structs.replace(event, reported=True)
    return event
