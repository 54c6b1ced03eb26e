"""Stored events that may only report hits: told apart from those that store, as far as can be.

Where a request asks for it (`kv_cache_report_mode=full`, vLLM since 0.26), the engine announces the
cached blocks that the request uses once more: one `BlockStored` of each cache group, a chain from
the first block of the prompt on. Removed they are once. No field says which is which, nor does a
setting of the engine, since each request asks for itself. And an engine that computes a prompt of
which it has the blocks, as it does for log-probabilities of prompts, sends the same bytes for
further copies, each of which it removes.

SGLang with LMCache or FlexKV (0.5.9 to 0.5.23, read) announces the pages of a node once more when
it has fetched what follows on them, wherever they hang, and removes them once. So do hybrid models
with HiCache (0.5.20 to 0.5.23, read) of pages in host memory, where a state behind them is backed
up. Of pages up to 0.5.17 two that have different salts have one name, and are two.

ATOM (0.1.5 and main of 2026, read) keeps one block of a name: one that it computes again takes the
place of the other, and is announced; when the one that it finds goes, it says so once.

So the registration says it, or the event itself (`origin`), or it stays undecided: events are
marked as `reported`, or as `undecided` (`schemas.events.StoredBlocks`); what follows from that the
kernel says (`COPIES_UNKNOWN`). What cannot be a report is a copy: a chain that hangs on a block,
and all that a release without such a mode sends, as those are that send arrays.

What is here is the specification of what the Rust kernel's packer does.
"""

from enum import StrEnum
from typing import NamedTuple, TypeGuard

import msgspec

from bridge.wire.forms import WireEvent
from schemas.events import SPARSE_SPEC_KINDS, BlockEvent, StoredBlocks
from schemas.identities import Medium
from schemas.registration import Registration, facts_of


class Roots(StrEnum):
    """What chains from the first block of a prompt on are: the name of the field that says so."""

    COPIES = ""
    REPORTED = "reported"
    UNDECIDED = "undecided"


class HitReports(NamedTuple):
    """What is known of a publisher's.

    Attributes:
        roots: what chains are that begin a prompt.
        all_chains: whether those that hang on a block are the same, and those on other tiers.
    """

    roots: Roots
    all_chains: bool

    @classmethod
    def of(cls, registration: Registration) -> "HitReports":
        """What its registration says of them; no other kind announces what it holds."""
        facts = facts_of(registration.kind)
        if facts.removes_once:
            return cls(Roots.REPORTED, facts.announces_chains_again)
        match registration.kv_cache_report_mode:
            case "full":
                roots = Roots.REPORTED
            case "" if facts.announces_again:
                roots = Roots.UNDECIDED
            case _:
                roots = Roots.COPIES
        return cls(roots, facts.announces_chains_again)

    def marked(self, event: BlockEvent, sent: WireEvent) -> BlockEvent:
        """The event, marked as what it is.

        Args:
            event: what was made of it.
        """
        roots, all_chains = self
        if not roots or sent.has_origin or not _is_chain(event):
            return event
        if not all_chains and (event.parent is not None or event.medium is not Medium.GPU):
            return event
        if roots is Roots.UNDECIDED and sent.__struct_config__.array_like and not all_chains:
            return event
        return msgspec.structs.replace(event, **{roots.value: True})


def _is_chain(event: BlockEvent) -> TypeGuard[StoredBlocks]:
    """Whether it stores blocks of its own by their tokens, in a group that forms a prefix, or whose
    rule is known.
    """
    return (
        isinstance(event, StoredBlocks)
        and bool(event.tokens)
        and (event.last_blocks > 0 or event.spec_kind not in SPARSE_SPEC_KINDS)
        and not event.shared
    )
