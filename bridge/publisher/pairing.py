"""Whether a replay socket is its publisher's own: what came live is compared with it. Pure.

A registration names two addresses, and nothing on the wire says that they are of one process. The
socket of another engine answers as well, with whole batches of plausible numbers and times. But an
engine sends the same bytes twice: a batch that it publishes is kept as it was encoded, and replayed
so (Source: vLLM 0.9-0.33, SGLang 0.4.10-0.5.23). So the last batch that came live is remembered,
and each replay is to begin no later than with that one:

    it has the same bytes   the socket is the publisher's
    it has other bytes      the socket is another's, if no link has ended since: see
                            `BatchStream.differs`
    nothing came live       nothing can be compared: what is replayed is taken, and confirms nothing

An engine that was restarted has the same addresses as before, so a socket that was shown to be the
publisher's is trusted with the next incarnation, too, until a batch of that comes live: what was
taken is compared with it then. So is the socket that the engine itself has named beside its other
one (`bridge.engine_http.discovery`).

Of a batch that came before this process did, the log knows the time, which identifies it as well.
"""

from typing import NamedTuple

from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.wire import DecodedBatch
from schemas.positions import Proof


class LiveBatch(NamedTuple):
    """A batch that was published to us.

    Attributes:
        digest: of its payload; None where only the log has it.
        engine_time: its own timestamp, Unix seconds; 0 where it has none.
        link: over which it came.
    """

    sequence: int
    digest: int | None
    engine_time: float
    link: LinkNumber

    def recognises(self, batch: DecodedBatch) -> bool | None:
        """Whether this is the same batch, or another one of its number; None: of another number, or
        not known.
        """
        if batch.sequence != self.sequence:
            return None
        if self.digest is not None:
            return batch.digest == self.digest
        if not self.engine_time or batch.engine_time is None:
            return None
        return batch.engine_time == self.engine_time


class Pairing:
    """Of one publisher, in one incarnation.

    Attributes:
        live: the last batch that came live and is in the log; None where none did.
        is_shown: its replay socket has shown a batch of this incarnation that came live.
        was_shown: or of an earlier one, or the engine has named it, and since then none that
            differs.
        is_open: the log has batches of which it is not known that they are this publisher's.
    """

    __slots__ = ("is_open", "is_shown", "live", "was_shown")

    def __init__(self) -> None:
        self.live: LiveBatch | None = None
        self.is_shown = self.was_shown = self.is_open = False

    @property
    def is_trusted(self) -> bool:
        """Whether what is replayed may confirm the publisher."""
        return self.is_shown or self.was_shown

    def vouch(self) -> None:
        """The engine itself has said that the replay socket is its own."""
        self.was_shown = True

    def distrust(self) -> None:
        """The replay socket has shown a batch that came live as another one."""
        self.is_shown = self.was_shown = False

    def begin_incarnation(self) -> None:
        """The log has nothing of the incarnation yet."""
        self.place(None, is_open=False)

    def place(self, heard: Proof | None, *, is_open: bool) -> None:
        """The log is all that is known.

        Args:
            heard: the last batch in it that came live.
            is_open: whether it has any.
        """
        self.live = (
            None if heard is None else LiveBatch(heard.sequence, None, heard.engine_time, NO_LINK)
        )
        self.was_shown = self.is_trusted
        self.is_shown, self.is_open = False, is_open

    @property
    def heard(self) -> Proof | None:
        """What the log is to know of the last batch that came live."""
        return None if self.live is None else Proof(self.live.sequence, self.live.engine_time)

    def note_live(self, live: LiveBatch, *, clears: bool = False) -> None:
        """This one was accepted; `clears`: of what was before it, nothing is left."""
        self.live = live
        self.is_open = self.is_open and not clears

    def note_whole(self) -> None:
        """Another bridge knows that all that the log has is this publisher's."""
        self.is_open = False

    def note_replayed(self) -> None:
        """Something was taken from the replay socket."""
        self.is_open = self.is_open or not self.is_shown

    def show(self, *, is_anchored: bool) -> None:
        """The replay socket has shown a batch that came live.

        Args:
            is_anchored: in a reply that goes on where the log ends, so that what the log has is of
                the same process.
        """
        self.is_shown = True
        if is_anchored:
            self.is_open = False
