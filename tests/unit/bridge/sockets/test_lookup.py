"""Host names, looked up beside everything else."""

import socket
import threading
from typing import Any

import pytest

from bridge.sockets import lookup as module
from bridge.sockets.lookup import LOOKUPS_AT_ONCE_MAX, Lookups, addresses_of


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        assert (host, port) == ("engine", 5557)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, 0, 0, "", (one, port))
            for one in addresses
        ]

    monkeypatch.setattr(module.socket, "getaddrinfo", getaddrinfo)  # type: ignore[attr-defined]


def test_a_name_stands_for_all_its_addresses_those_of_ipv4_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver(monkeypatch, "::1", "10.0.0.7", "10.0.0.7", "10.0.0.8")
    assert addresses_of("tcp://engine:5557") == [
        "tcp://10.0.0.7:5557",
        "tcp://10.0.0.8:5557",
        "tcp://[::1]:5557",
    ]


def test_a_name_that_nobody_knows_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch)
    with pytest.raises(OSError, match="not known"):
        Lookups().look_up("tcp://engine:5557").result(5)


def test_what_can_be_no_name_is_an_os_error() -> None:
    with pytest.raises(OSError, match="no host name"):
        addresses_of(f"tcp://{'a' * 70}.example:5557")


def test_one_name_is_looked_up_once_at_a_time_and_many_no_more_than_some_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going_on, lock = threading.Event(), threading.Lock()
    asked: list[str] = []

    def slow(endpoint: str) -> list[str]:
        with lock:
            asked.append(endpoint)
        assert going_on.wait(10)
        return [endpoint]

    monkeypatch.setattr(module, "addresses_of", slow)
    lookups = Lookups()
    names = [f"tcp://engine-{number}:1" for number in range(3 * LOOKUPS_AT_ONCE_MAX)]
    found = [lookups.look_up(name) for name in names]
    assert lookups.look_up(names[0]) is found[0]
    assert lookups.look_up(names[-1]) is found[-1]
    assert len(asked) <= LOOKUPS_AT_ONCE_MAX
    going_on.set()
    assert [one.result(5) for one in found] == [[name] for name in names]
    assert sorted(asked) == sorted(names)
    assert lookups.look_up(names[0]).result(5) == [names[0]]
    assert len(asked) == len(names) + 1, "it is looked up anew"
