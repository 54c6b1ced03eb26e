"""A router that knows no more than what it has sent where, and of which session a request is."""

from array import array

import pytest

from lab.whatif.decided_index import DecidedIndex
from lab.whatif.run import SimulationRun
from lab.whatif.setup import RouterKnowledge, Setup
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest
from routing.costs import Costs

SIZE = 100
COSTS = Costs(prefill_tokens_per_s=1000, token_squared_s=0)


def blocks(index: DecidedIndex, chain: list[int], now: float) -> list[int]:
    return [match.longest for match in index.ask(array("I", chain), now)]


def send(index: DecidedIndex, chain: list[int], place: int, now: float) -> None:
    index.ask(array("I", chain), now)
    index.decided(array("I", chain), place, now)


def test_a_node_holds_what_it_was_sent_for_a_time() -> None:
    index = DecidedIndex(["a", "b"], lasts_s=10.0, capacity_blocks=0)
    assert blocks(index, [1, 2, 3], 0.0) == [0, 0]
    send(index, [1, 2, 3], 1, 0.0)
    assert blocks(index, [1, 2, 3, 4], 9.0) == [0, 3]
    assert blocks(index, [1, 2, 9], 9.0) == [0, 2]
    assert blocks(index, [1, 2, 3], 10.0) == [0, 0]


def test_or_as_long_as_its_capacity_has_room_and_where_a_match_ended_is_marked() -> None:
    index = DecidedIndex(["a"], lasts_s=10.0, capacity_blocks=8)
    send(index, [1, 2, 3], 0, 0.0)
    send(index, [1, 2, 3, 4, 5, 6], 0, 1.0)
    send(index, [11, 12], 0, 2.0)
    assert blocks(index, [1, 2, 3, 4, 5, 6], 1e6) == [6], "six and two fit"
    send(index, [21, 22], 0, 3.0)
    assert blocks(index, [21, 22], 1e6) == [2]
    assert blocks(index, [1, 2, 3, 4, 5, 6], 1e6) == [4], "its end went first"


def requests(*chains: tuple[float, list[int]]) -> list[TraceRequest]:
    return [TraceRequest(at * 1000, len(ids) * SIZE, 1, ids) for at, ids in chains]


def test_the_next_turn_of_a_request_is_of_its_session() -> None:
    found = Workload(
        "sessions",
        SIZE,
        requests(
            (0, [1, 2]),
            (1, [1, 7, 8]),
            (2, [1, 2, 3]),
            (3, [1, 7, 8, 9]),
            (4, [1]),
            (5, [1, 5]),
            (6, [1, 2, 3, 4]),
        ),
    ).sessions
    assert list(found) == [0, 1, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("index", list(RouterKnowledge))
def test_what_the_router_knows_decides_who_computes_again(
    index: RouterKnowledge, sessions: bool
) -> None:
    """Two sessions, one after the other on two nodes: whoever knows nothing gives by ties."""
    lines = requests(
        *[(10.0 * turn + at, [at, *range(10, 11 + turn)]) for turn in range(12) for at in (1, 2)]
    )
    setup = Setup(
        policy="wait-and-work",
        nodes=2,
        gpu_blocks=1000,
        costs=COSTS,
        index=index,
        sessions=sessions,
        decisions_s=30.0,
    )
    outcome = SimulationRun(setup, Workload("by hand", SIZE, lines)).outcome()
    most = outcome.blocks - 2 * 13  # each block of each session once
    if index is RouterKnowledge.NOTHING and not sessions:
        assert outcome.hit_blocks < most
    else:
        assert outcome.hit_blocks == most
    assert outcome.requests == 24
