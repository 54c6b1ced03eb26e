"""What plain decisions without Python go by (`streams/kernel/native/routing`), as Python has it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from routing.decisions.late_work import Late
from routing.observed.predicted_blocks import MarkWatcher
from schemas.routing_records import Target
from streams.kernel.interface import ReadOnlyKernel

BoardName = tuple[str, str, bytes | None]
"""Tenant, model, and the candidates as they stand in a body; None: the model's."""


class BoardTarget(NamedTuple):
    """A candidate as registered, or as a request names it; see `routing.decisions.targets`.

    Attributes:
        is_open: whether a request means all ranks of its instance.
        costs: index of its cost model.
    """

    instance_id: str
    dp_rank: int
    endpoint: str
    is_allowed: bool
    is_degraded: bool
    is_approximate: bool
    is_open: bool
    costs: int
    class_name: str
    kv_bytes: int
    capacity_tokens: int
    p90: float
    is_sure: bool
    doubts_adapters: bool


class BoardRoster(NamedTuple):
    """The candidates of a board, sorted.

    Attributes:
        costs: their cost models, the one of the settings first.
        output_tokens, output_token_s: see `routing.decisions.targets.Roster`.
        is_closed: whether who holds something and is not among them is a candidate, too.
        label: what Python calls the board.
    """

    targets: list[BoardTarget]
    costs: list[tuple[float, ...]]
    output_tokens: int
    output_token_s: float
    is_closed: bool
    label: int


class BoardStanding(NamedTuple):
    """What a candidate carries beside what is booked, and what of that is late.

    Attributes:
        place: of the candidate.
        beside: see `UnbookedLoad.numbers`; None: nothing.
        late: see `LateWork`, in its order.
    """

    place: int
    beside: tuple[float, ...] | None
    late: list[Late]


class BoardLoads(NamedTuple):
    """What the candidates of a board carry.

    Attributes:
        numbers: of each, as `kernel_decisions` packs it.
        standing: of those that have it.
    """

    numbers: list[float]
    standing: list[BoardStanding]


class RouteBoards(MarkWatcher, Protocol):
    """The boards in the kernel, and what was decided by them. Any thread may call it; none waits
    longer than a decision takes.

    Of marks, what lasts by a capacity it leaves out.

    Attributes:
        waiting: how many decisions and reports wait to be taken.
    """

    waiting: int

    def publish(
        self,
        name: BoardName,
        roster: BoardRoster,
        loads: BoardLoads,
        applied: int,
        holds_s: float,
        /,
    ) -> None:
        """Decisions of these candidates are made by this, for so long.

        Args:
            applied: the loads have all effects before that one; see `take`.
            holds_s: seconds.
        """
        ...

    def refresh(self, name: BoardName, loads: BoardLoads, applied: int, holds_s: float, /) -> bool:
        """The same candidates carry something else; says whether they are known."""
        ...

    def withdraw(self, name: BoardName, /) -> None:
        """Python decides of these candidates from now on."""
        ...

    def withdraw_all(self) -> None:
        """Python decides of all."""
        ...

    def used(self) -> list[int]:
        """The labels of the boards by which was decided since they were published."""
        ...

    def take(self, most: int, /) -> tuple[list[tuple[bool, bytes]], int]:
        """The first of what waits, so many at the most; 0: all. Of each, whether it is a report, a
        `FeedbackReport`, else a `KernelDecision`; and up to which effect that goes, those of `note`
        included.
        """
        ...

    def set_pace(self, count: int, /) -> None:
        """So many are taken at once, and soon again where as many wait: then requests wait rather
        than ever more decisions. 0: none does.
        """
        ...

    def report(self, body: bytes, now: float, tenants: list[str] | None, /) -> int | None:
        """Takes the reports of a body in JSON, as the listener does: how many; None where Python
        has to. They are of decisions made here, and new; see `route` for the rest.
        """
        ...

    def close(self, number: int, /) -> bool:
        """Python takes what is told of that decision from now on; says whether anything of it waits
        to be taken.
        """
        ...

    def close_all(self) -> None:
        """The same of all decisions that were made so far."""
        ...

    def keep_open(self, keeps_open: bool, /) -> None:
        """Whether Python is sure to book what is decided from now on; else it takes the reports."""
        ...

    def note(
        self, target: Target, time: float, work_s: float, uncached: int, tokens: int, /
    ) -> None:
        """Python has booked a decision, which has this effect on a target."""
        ...

    def note_answered(self, tenant_id: str, request_id: str, now: float, /) -> None:
        """Python answers that request; it is handed over where it comes again."""
        ...

    def forget_answer(self, tenant_id: str, request_id: str, /) -> None:
        """That request is decided anew where it comes again."""
        ...

    def forget_all(self) -> None:
        """Nothing is predicted any more."""
        ...

    def route(
        self,
        kernel: ReadOnlyKernel,
        body: bytes,
        state: Callable[[str, str, str, int, str], str],
        now: float,
        tenants: list[str] | None,
        /,
    ) -> tuple[bytes, int, int] | None:
        """Decides of a body in JSON, as the listener does: the answer, the tokens of the prompt,
        and the most that one instance holds of it; None where Python has to.

        Args:
            kernel: that is asked, of Rust.
            body: of `POST /route`.
            state: how far answers of a scope can be trusted.
            now: Unix seconds.
            tenants: whom it may be about; None: everybody.
        """
        ...

    def counts(self) -> list[int]:
        """See `routing.decisions.live_load.KernelCounts`."""
        ...
