"""What `GET /gaps` answers: the gap ledger of each publisher, as a document. Pure."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from schemas.identities import PublisherKey, StreamKey
from schemas.positions import PublisherState
from streams.table.ledger import Account, Incarnation, Interval, Kind, Ledger, spans_of


class LedgerView(NamedTuple):
    """One publisher's ledger, and what is folded of it."""

    publisher: PublisherKey
    ledger: Ledger
    state: PublisherState | None


class IntervalDocument(msgspec.Struct, kw_only=True):
    """Consecutive batches with one cause."""

    first: Annotated[int, Meta(description="Sequence number of the first one.")]
    last: Annotated[int, Meta(description="Of the last one, which is among them.")]
    batches: int
    cause: Annotated[str, Meta(description="In one word: `missed`, `reconnected`, ...")]
    at: Annotated[float, Meta(description="Of the first record that says so, Unix seconds.")]
    until: Annotated[float, Meta(description="Of the last one.")]


class ForgottenDocument(msgspec.Struct, kw_only=True):
    """Intervals that are too old to be listed: how many, and of how many batches."""

    intervals: int
    batches: int


class AccountDocument(msgspec.Struct, kw_only=True):
    """The batches of one kind; `batches` counts those of forgotten intervals, too."""

    batches: int
    intervals: list[IntervalDocument]
    forgotten: ForgottenDocument


class SeenDocument(msgspec.Struct, kw_only=True):
    """The batches that are in the table: they came, or a replay brought them."""

    batches: int
    intervals: Annotated[
        list[list[int]],
        Meta(description="`[first, last]` of each; behind lost ones that are forgotten."),
    ]


class IncarnationDocument(msgspec.Struct, kw_only=True):
    """One run of the publisher's process. Each number from `first_sequence` to `last_sequence` is
    seen or lost; repaired and incomplete ones are seen.
    """

    incarnation: int
    current: Annotated[bool, Meta(description="Whether it is the one that goes on.")]
    began_at: Annotated[float, Meta(description="Unix seconds; 0 where it is not known.")]
    reason: Annotated[str, Meta(description="Of its `reset` record; empty for the first one.")]
    first_sequence: Annotated[int, Meta(description="Of the first batch that is accounted for.")]
    last_sequence: Annotated[int, Meta(description="Of the last one; -1 before the first.")]
    seen: SeenDocument
    lost: AccountDocument
    repaired: AccountDocument
    incomplete: AccountDocument


class TotalsDocument(msgspec.Struct, kw_only=True):
    """Batches by cause, of all incarnations since the publisher was registered."""

    lost: dict[str, int]
    repaired: dict[str, int]
    incomplete: dict[str, int]


class PublisherGapsDocument(msgspec.Struct, kw_only=True):
    """One publisher; the latest incarnation is the last one."""

    tenant_id: str
    model_name: str
    block_size: int
    additional_salt: str
    instance_id: str
    dp_rank: int
    totals: TotalsDocument
    forgotten_incarnations: int
    incarnations: list[IncarnationDocument]


class GapsDocument(msgspec.Struct, kw_only=True):
    """Of every batch that a publisher has numbered, what became of it."""

    position: Annotated[
        str, Meta(description="`partition:offset` of the last record folded, of each partition.")
    ]
    publishers: list[PublisherGapsDocument]


class PublisherFilter(NamedTuple):
    """Which publishers are asked for; "" for any."""

    tenant_id: str = ""
    model: str = ""
    instance_id: str = ""

    def matches(self, stream: StreamKey) -> bool:
        """Whether the stream's publishers are."""
        return (
            self.tenant_id in ("", stream.tenant_id)
            and self.model in ("", stream.model_name)
            and self.instance_id in ("", stream.instance_id)
        )


def gaps_document(
    views: Iterable[LedgerView],
    position: str,
    wanted: PublisherFilter,
    *,
    only_totals: bool = False,
) -> GapsDocument:
    """The answer, sorted by publisher. Cost O(intervals); O(publishers) for totals alone, without
    incarnations.
    """
    found = sorted(
        (view for view in views if wanted.matches(view.publisher.stream)),
        key=lambda view: view.publisher,
    )
    publishers = [_publisher(view, only_totals=only_totals) for view in found]
    return GapsDocument(position=position, publishers=publishers)


def _publisher(view: LedgerView, *, only_totals: bool) -> PublisherGapsDocument:
    (stream, dp_rank), ledger = view.publisher, view.ledger
    return PublisherGapsDocument(
        **stream._asdict(),
        dp_rank=dp_rank,
        totals=TotalsDocument(**{kind.value: ledger.totals(kind) for kind in Kind}),
        forgotten_incarnations=ledger.forgotten,
        incarnations=[
            _incarnation(one, view.state) for one in (() if only_totals else ledger.incarnations)
        ],
    )


def _incarnation(one: Incarnation, state: PublisherState | None) -> IncarnationDocument:
    spans = spans_of(one, state)
    return IncarnationDocument(
        incarnation=one.number,
        current=one.last is None,
        began_at=one.began_at,
        reason=one.reason,
        first_sequence=spans.first,
        last_sequence=spans.last,
        seen=SeenDocument(batches=spans.seen, intervals=[list(span) for span in spans.intervals]),
        lost=_account(one.lost),
        repaired=_account(one.repaired),
        incomplete=_account(one.incomplete),
    )


def _account(account: Account) -> AccountDocument:
    return AccountDocument(
        batches=account.batches,
        intervals=[_interval(one) for one in account.intervals],
        forgotten=ForgottenDocument(intervals=account.forgotten, batches=account.forgotten_batches),
    )


def _interval(one: Interval) -> IntervalDocument:
    return IntervalDocument(
        first=one.first,
        last=one.last,
        batches=one.batches,
        cause=one.cause,
        at=one.at,
        until=one.until,
    )
