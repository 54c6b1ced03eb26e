"""What is looked for of what a link brings, over real links of TCP."""

import socket
from collections.abc import Iterator

import pytest

import bridge.sockets.link_bytes as link_bytes_module
from bridge.sockets.link_bytes import LINK_LOOK_BYTES, LINK_UNFINISHED_BYTES, LinkBytes
from schemas.limits import MIB

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "TCP_INFO"), reason="only Linux counts a link's bytes"
)


class Memory:
    """Of the process, as it is told."""

    def __init__(self) -> None:
        self.bytes = 100 * MIB

    def now_bytes(self) -> int:
        return self.bytes


class Link:
    """Both ends of one: `bring` is taken at once, as libzmq does."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.ours = socket.create_connection(server.getsockname())
            self._peer, _ = server.accept()
        self.bytes = LinkBytes(is_encrypted=False)
        self.bytes.follow(self.ours.fileno())

    def bring(self, size_bytes: int) -> None:
        self._peer.sendall(bytes(size_bytes))
        left = size_bytes
        while left:
            left -= len(self.ours.recv(left))

    def close(self) -> None:
        self.bytes.close()
        self.ours.close()
        self._peer.close()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(link_bytes_module, "_MEMORY", memory)
    return memory


@pytest.fixture
def link(memory: Memory) -> Iterator[Link]:
    link = Link()
    assert not link.bytes.breach(has_arrived=False)
    yield link
    link.close()


def test_what_comes_little_by_little_is_much_in_the_end(link: Link) -> None:
    """Else a message that has no end, and comes slowly, would never be looked for."""
    for _ in range(3):
        link.bring(LINK_LOOK_BYTES // 4)
        assert not link.bytes.brings_much(0)
    link.bring(LINK_LOOK_BYTES // 4)
    assert link.bytes.brings_much(0)
    assert link.bytes.brings_much(0), "until it is looked for"
    assert not link.bytes.breach(has_arrived=False)
    assert not link.bytes.brings_much(0)


def test_what_the_process_takes_for_others_is_not_held_against_a_message(
    link: Link, memory: Memory
) -> None:
    """The table may grow by gigabytes between two looks at what a link brings."""
    memory.bytes += 2 * link_bytes_module.LINK_GROWN_BYTES_MAX
    assert not link.bytes.brings_much(memory.bytes)
    link.bring(LINK_UNFINISHED_BYTES + LINK_LOOK_BYTES)
    assert not link.bytes.breach(has_arrived=False), "it has not grown since"
    memory.bytes += link_bytes_module.LINK_GROWN_BYTES_MAX
    assert not link.bytes.brings_much(memory.bytes), "nothing has come meanwhile"
    link.bring(LINK_LOOK_BYTES)
    assert not link.bytes.breach(has_arrived=False)
    memory.bytes += 1
    assert "which take" in link.bytes.breach(has_arrived=False), (
        "but as soon as much has come it is"
    )
