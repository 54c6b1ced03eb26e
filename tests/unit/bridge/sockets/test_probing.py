"""Whether somebody listens at an address."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.sockets.bounds import LINK_PROBE_WAIT_S
from bridge.sockets.probing import Address, LinkProbes, address_of

PATIENCE_S = 30.0


@pytest.fixture
def probing() -> Iterator[LinkProbes[str]]:
    built: LinkProbes[str] = LinkProbes()
    yield built
    built.close()
    assert len(built) == 0


def answer(probing: LinkProbes[str], endpoint: str) -> bool:
    address = address_of(endpoint)
    assert address is not None
    told = probing.begin("w", address)
    deadline = time.monotonic() + PATIENCE_S
    while told is None:
        assert time.monotonic() < deadline
        for owner, answers in probing.ended():
            assert owner == "w"
            told = answers
    assert len(probing) == 0
    return told


def test_a_port_is_asked_whether_somebody_listens(probing: LinkProbes[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert answer(probing, endpoint)
    assert not answer(probing, endpoint)


@pytest.mark.parametrize("name", ["@reprise-{}", "{}/engine"])
def test_a_path_is_asked_likewise(probing: LinkProbes[str], tmp_path: Path, name: str) -> None:
    endpoint = f"ipc://{name.format(tmp_path)}"
    assert not answer(probing, endpoint)
    address = address_of(endpoint)
    assert address is not None
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address.place)
        server.listen()
        assert answer(probing, endpoint)
    assert not answer(probing, endpoint)


def test_endpoints_are_told_to_the_system_as_they_are_written() -> None:
    assert address_of("tcp://10.0.0.7:5557") == Address(socket.AF_INET, ("10.0.0.7", 5557))
    assert address_of("tcp://[::1]:5557") == Address(socket.AF_INET6, ("::1", 5557, 0, 0))
    assert address_of("ipc:///run/engine") == Address(socket.AF_UNIX, "/run/engine")
    assert address_of("tcp://engine.example:5557") is None, "a name is never looked up here"


def test_an_address_that_the_system_does_not_take_is_nobodys(probing: LinkProbes[str]) -> None:
    assert probing.begin("w", Address(socket.AF_UNIX, "/" + "x" * 200)) is False


def full_server(stack: ExitStack) -> Address:
    """A port that neither accepts nor refuses: its queue is full."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(4):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return Address(socket.AF_INET, server.getsockname())


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux lets it wait")
def test_a_host_that_says_nothing_is_waited_for_no_longer_than_its_time() -> None:
    clock = [0.0]
    probing: LinkProbes[str] = LinkProbes(lambda: clock[0])
    with ExitStack() as stack:
        address = full_server(stack)
        assert probing.begin("w-1", address) is None
        clock[0] = 1.0
        assert probing.begin("w-2", address) is None
        assert probing.ended() == []
        clock[0] = LINK_PROBE_WAIT_S
        assert probing.ended() == [("w-1", False)]
        probing.give_up("w-2")
        probing.give_up("w-2")
        clock[0] += LINK_PROBE_WAIT_S
        assert (probing.ended(), len(probing)) == ([], 0)
    probing.close()
