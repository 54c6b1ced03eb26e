"""Ports for what tests start."""

from devtools.broker import free_ports, is_answering


def test_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any(is_answering(f"127.0.0.1:{port}") for port in ports)
