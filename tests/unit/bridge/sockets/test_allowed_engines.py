"""Addresses that nobody can have the service connect to, however they are spelt."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.engine_http.engine import check_http
from bridge.sockets import lookup
from bridge.sockets.allowed_engines import ALLOWED, ALLOWED_ENGINES_MAX, AllowedEngines
from bridge.sockets.endpoints import check_endpoint, check_replay_endpoint
from bridge.sockets.lookup import addresses_of
from schemas.errors import AddressRefusedError, ConfigurationError
from schemas.registration import Registration
from tests.fakes import registration

NEVER = [
    "169.254.169.254",
    "169.254.1.1",
    "100.100.100.200",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "0:0:0:0:0:ffff:a9fe:a9fe",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
]
PRIVATE = ["127.0.0.1", "::1", "10.0.0.7", "172.16.0.1", "192.168.1.1", "fd12::1", "100.64.0.1"]
PUBLIC = ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def endpoint(address: str) -> str:
    return f"tcp://[{address}]:5557" if ":" in address else f"tcp://{address}:5557"


def url(address: str) -> str:
    return endpoint(address).replace("tcp", "http")


@pytest.fixture(autouse=True)
def by_default() -> Iterator[None]:
    yield
    ALLOWED.allow(())


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_connected_to(address: str) -> None:
    ALLOWED.allow(("0.0.0.0/0", "::/0", "*"))
    for check in (check_endpoint, check_replay_endpoint):
        with pytest.raises(AddressRefusedError, match="Expected the address of an engine"):
            check(endpoint(address))
    if "%" not in address:
        with pytest.raises(AddressRefusedError):
            check_http(
                Registration(
                    endpoint="tcp://10.0.0.7:5557",
                    kind=registration().kind,
                    model_name="m",
                    instance_id="a",
                    block_size=4,
                    http_endpoint=url(address),
                )
            )


@pytest.mark.parametrize("address", PRIVATE)
def test_private_networks_are_by_default(address: str) -> None:
    check_endpoint(endpoint(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_others_are_where_they_are_named(address: str) -> None:
    with pytest.raises(AddressRefusedError, match=r"engines\.allow"):
        check_endpoint(endpoint(address))
    ALLOWED.allow(("0.0.0.0/0", "::/0"))
    check_endpoint(endpoint(address))


def test_what_is_named_is_all_that_is_allowed() -> None:
    allowed = AllowedEngines()
    allowed.allow(("10.1.7.9/16", "192.168.0.9", "*.engines.svc"))
    for address in ("10.1.2.3", "192.168.0.9"):
        allowed.check(address)
    for address in ("10.2.0.1", "127.0.0.1", "192.168.0.8"):
        with pytest.raises(AddressRefusedError):
            allowed.check(address)
    allowed.check("8.8.8.8", "vllm-0.ENGINES.svc.")
    allowed.check("vllm-0.elsewhere.svc")  # a name is judged when it is looked up
    for name in ("vllm-0.elsewhere.svc", "engines.svc", "x.engines.svc.evil"):
        with pytest.raises(AddressRefusedError, match=name):
            allowed.check("10.2.0.1", name)
    assert allowed.refused == 6


def test_where_only_names_are_allowed_no_address_is_that_none_of_them_stands_for() -> None:
    allowed = AllowedEngines()
    allowed.allow(("*", "*.engines.svc"))
    for address in ("127.0.0.1", "8.8.8.8"):
        with pytest.raises(AddressRefusedError, match=r"engines\.allow"):
            allowed.check(address)
        allowed.check(address, "vllm-0.elsewhere.svc")
    for refused, address in enumerate(("224.0.0.1", "169.254.1.1", "127.1"), start=3):
        with pytest.raises(AddressRefusedError):
            allowed.check(address, "vllm-0.engines.svc")
        assert allowed.refused == refused


@pytest.mark.parametrize(
    "pattern", ["10.0.0.0/33", "a b", "tcp://10.0.0.7", "", "ü.svc", "a/b", "a:1", "a\0b"]
)
def test_a_pattern_that_is_none_is_named(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected networks as"):
        AllowedEngines().allow((pattern,))


def test_patterns_are_bounded() -> None:
    AllowedEngines().allow(["*.svc"] * ALLOWED_ENGINES_MAX)
    with pytest.raises(ConfigurationError, match=f"at most {ALLOWED_ENGINES_MAX}"):
        AllowedEngines().allow(["*.svc"] * (ALLOWED_ENGINES_MAX + 1))


@pytest.mark.parametrize(
    "spelt", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.16689662", "127.1", "0"]
)
def test_other_spellings_of_an_address_are_refused(spelt: str) -> None:
    """inet_aton reads them, and so does the system's resolver: one engine would have many."""
    with pytest.raises(AddressRefusedError, match="an address in full"):
        check_endpoint(f"tcp://{spelt}:80")


def test_a_name_that_stands_for_one_of_them_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that stands for others as well, or for another one at the next look."""
    answers = [["10.0.0.7"], ["10.0.0.7", "169.254.169.254"], ["::ffff:169.254.169.254"]]

    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        found = answers.pop(0)
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(lookup.socket, "getaddrinfo", getaddrinfo)  # type: ignore[attr-defined]
    check_endpoint("tcp://rebinding.example:5557")
    assert addresses_of("tcp://rebinding.example:5557") == ["tcp://10.0.0.7:5557"]
    for _ in range(2):
        with pytest.raises(OSError, match=r"rebinding\.example, which is .*169\.254\.169\.254"):
            addresses_of("tcp://rebinding.example:5557")
