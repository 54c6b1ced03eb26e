"""Where a publisher stands in the log: what a repair begins from. Pure."""

from typing import Final, NamedTuple

from bridge.link_numbers import NO_LINK, LinkNumber
from schemas.positions import NO_CURSOR, Cursor, Proof, PublisherState, media_of_next
from schemas.records import EventsRecord, SequencedRecord


class Anchor(NamedTuple):
    """A batch that is in the log, with the time that identifies its incarnation.

    Attributes:
        engine_time: its own timestamp, Unix seconds; 0 where it is not known.
        proof: None where it is known to be of its incarnation.
        begun: the timestamp of the next batch, where the log has a part of it; else None.
        heard: the last batch of the incarnation that came live, and was not replayed.
        window, media: see `PublisherState`.
    """

    cursor: Cursor
    engine_time: float
    proof: Proof | None = None
    begun: float | None = None
    heard: Proof | None = None
    window: int | None = None
    media: int = 0

    @classmethod
    def of(cls, state: PublisherState) -> "Anchor":
        """The one of a table that has folded the whole log."""
        begun = None if state.begun is None else state.begun.engine_time
        heard, window, media = state.heard, state.window, state.media
        return cls(state.cursor, state.engine_time, state.proof, begun, heard, window, media)

    def after(self, record: SequencedRecord) -> "Anchor":
        """The one that the record leads to, where it is not older than this."""
        cursor = record.reached
        is_other = cursor.incarnation != self.cursor.incarnation
        heard = None if is_other else self.heard
        window = None if is_other else self.window
        media = media_of_next(self.media) if is_other else self.media
        if not isinstance(record, EventsRecord):
            return Anchor(cursor, 0.0, heard=heard, window=window, media=media)
        heard = record.heard or heard
        window, media = record.window_after(window), record.media_after(media)
        if is_other:
            if record.is_unfinished:
                return Anchor(cursor, 0.0, begun=record.engine_time, media=media)
            return Anchor(cursor, record.engine_time, heard=heard, window=window, media=media)
        proof = self.proof
        if record.doubted is True:
            proof = proof or Proof(self.cursor.sequence, self.engine_time)
        elif not record.is_unfinished:
            proof = None
        if record.is_unfinished:
            # The batch before is the last whole one, and only that proves what this one is of.
            engine_time = self.engine_time if cursor == self.cursor else 0.0
            return Anchor(cursor, engine_time, proof, record.engine_time, heard, window, media)
        return Anchor(cursor, record.engine_time, proof, None, heard, window, media)


class Joint(NamedTuple):
    """What the bridge that followed a publisher before knows at the end.

    Attributes:
        link: of ours, over which comes what is of the log's incarnation; NO_LINK where only a batch
            that came to both can tell.
        is_whole: what the log had when it gave the publisher up is known to be this publisher's,
            and of its incarnation.
    """

    link: LinkNumber = NO_LINK
    is_whole: bool = False


class BegunBatch(NamedTuple):
    """The batch after this one is in the log in part; its own timestamp."""

    after: Cursor
    engine_time: float


class Checkpoint(NamedTuple):
    """Where the publisher stood when its last window started."""

    anchor: Anchor
    degraded: bool


NO_JOINT: Final = Joint()
NO_ANCHOR: Final = Anchor(NO_CURSOR, 0.0)
