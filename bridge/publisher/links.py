"""Over which links one publisher's batches came, and what that says of the engine's process. Pure.

A link ends with the process at its other end. So a link that is known to be of the log's
incarnation proves all that comes over it, and numbers alone prove nothing behind the next one.
"""

from typing import Final

from bridge.link_numbers import NO_LINK, LinkNumber

_UNPROVEN: Final = LinkNumber(-1)
"""No link has it. An unknown one may be proven: it is the only one then."""


class Links:
    """Of one stream of batches; one owner.

    Attributes:
        last: the one that brought the last message.
        live: the one that is up, or the next one.
        is_up: whether it is up.
        first: to the engine's process: what came over earlier ones is of a process before.
        proven: what comes over it is known to be of the log's incarnation.
    """

    __slots__ = ("first", "is_up", "last", "live", "proven")

    def __init__(self) -> None:
        self.last = self.live = self.first = NO_LINK
        self.is_up = False
        self.proven = _UNPROVEN

    @property
    def up(self) -> LinkNumber:
        """The one that is up; NO_LINK for none, or where that is not known."""
        return self.live if self.is_up else NO_LINK

    def note(self, link: LinkNumber, *, is_up: bool = True) -> None:
        """This link is up, or will be the next one."""
        self.live, self.is_up = link, is_up

    def is_known(self, link: LinkNumber) -> bool:
        """Whether it is known which link this is, and that it is proven."""
        return NO_LINK < link == self.proven

    def is_earlier(self, link: LinkNumber) -> bool:
        """Whether this link was to a process of the engine before the present one."""
        return NO_LINK < link < self.first

    def join(self, link: LinkNumber) -> None:
        """What this link brings follows on what is in the log."""
        self.last = max(self.last, link)

    def adopt(self, link: LinkNumber, *, heard: LinkNumber) -> None:
        """What comes over this link is of the process that the link before was to: it was up when
        that process was asked, and `heard` had brought the last message by then.
        """
        if self.proven == heard:
            self.proven = max(heard, link)
        self.join(link)

    def forget_proof(self) -> None:
        """The log is all that is known."""
        self.proven = _UNPROVEN

    def forget_last(self) -> None:
        """What the last link has brought is not in the log: only the next message shows it."""
        self.last = NO_LINK
