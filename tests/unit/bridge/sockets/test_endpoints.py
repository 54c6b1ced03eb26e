import pytest

from bridge.sockets.endpoints import check_endpoint, check_publisher_endpoint, names_host
from schemas.errors import AddressRefusedError, EndpointError


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.0.0.7:5557",
        "tcp://worker-3.cluster.local:1",
        "tcp://[fd00::7]:5557",
        "tcp://localhost:65535",
        "ipc:///run/engine",
        "ipc://@abstract",
    ],
)
def test_addresses_of_other_processes_are_accepted(endpoint: str) -> None:
    check_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "10.0.0.7:5557",
        "TCP://h:5557",
        "inproc://engine",
        "ipc://",
        "tcp://",
        "tcp://h",
        "tcp://h:",
        "tcp://:5557",
        "tcp://*:5557",
        "tcp://a b:5557",
        "tcp://a\0b:5557",
        "tcp://h:*",
        "tcp://h:0",
        "tcp://h:65536",
        "tcp://h:-1",
        "tcp://h:55 ",
        "tcp://h:\u0665\u0665",
        "tcp://h:5557/x",
        "tcp://h/x:5557",
        "tcp://10.0.0.1:1;127.0.0.1:21750",
        "tcp://eth0;169.254.169.254:80",
        "tcp://x;y:1",
        "tcp://;127.0.0.1:1",
        "tcp://127.0.0.1;:1",
    ],
)
def test_what_can_never_be_reached_is_refused_with_its_text(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="Expected") as caught:
        check_endpoint(endpoint)
    assert endpoint in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("tcp://localhost:1", True),
        ("tcp://worker-3:1", True),
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://[fe80::1%eth0]:1", False),
        ("ipc:///run/engine", False),
    ],
)
def test_host_names_are_told_from_addresses(endpoint: str, named: bool) -> None:
    assert names_host(endpoint) is named


@pytest.mark.parametrize("endpoint", ["grpc://10.0.0.7:50051", "grpc://engine-0:1", "tcp://a:1"])
def test_a_publisher_may_stream(endpoint: str) -> None:
    check_publisher_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    ["grpc://", "grpc://a", "grpc://:1", "grpc://a:0", "grpc://unix:/run/x", "http://a:1"],
)
def test_what_is_no_address_of_a_stream_is_refused(endpoint: str) -> None:
    with pytest.raises(EndpointError):
        check_publisher_endpoint(endpoint)


def test_what_may_not_be_connected_to_is_no_address_of_a_stream_either() -> None:
    with pytest.raises(AddressRefusedError):
        check_publisher_endpoint("grpc://169.254.169.254:80")
