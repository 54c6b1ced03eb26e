"""The publishers' process: what it sends, to whom, and what it sends again."""

import msgspec
import zmq

from lab.benchmarks.embedded.publishers import Publishers
from lab.engines.publisher import END_SEQUENCE
from lab.traffic.event_load import LoadPlan, encode_load

PLAN = LoadPlan(blocks=64, blocks_per_event=4, block_size=2, seed=3, sequence_step=3)
WAIT_MS = 20_000


class NaiveFollower:
    """Subscribes where it is told to; `replays`: the replay sockets."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._context = context
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.replays: dict[str, str] = {}

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        socket = self.sockets[instance_id] = self._context.socket(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(endpoint)
        self.replays[instance_id] = replay_endpoint

    def heard(self, instance_id: str, count: int) -> list[tuple[int, bytes]]:
        socket, found = self.sockets[instance_id], []
        for _ in range(count):
            assert socket.poll(WAIT_MS)
            _, sequence, payload = socket.recv_multipart()
            found.append((int.from_bytes(sequence, "big"), payload))
        return found

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close(linger=0)


def payloads_of(plan: LoadPlan, seed: int) -> list[bytes]:
    return encode_load(msgspec.structs.replace(plan, seed=seed)).payloads


def test_each_sends_its_own_load_with_gaps_before_its_messages() -> None:
    with zmq.Context() as context, Publishers(PLAN, publishers=2, own_prompts=True) as publishers:
        follower = NaiveFollower(context)
        publishers.connect(follower)
        sent = publishers.send()
        assert (sent.messages, sent.blocks, sent.last_sequence) == (32, 128, 45)
        for number in range(2):
            heard = follower.heard(f"i{number}", 16)
            assert [sequence for sequence, _ in heard] == list(range(0, 48, 3))
            assert [payload for _, payload in heard] == payloads_of(PLAN, PLAN.seed + number)
        follower.close()


def test_what_was_sent_is_sent_again_from_a_sequence_on() -> None:
    plan = msgspec.structs.replace(PLAN, sequence_step=1)
    with zmq.Context() as context, Publishers(plan, first=7, replays=True) as publishers:
        follower = NaiveFollower(context)
        publishers.connect(follower)
        publishers.send()
        asking = context.socket(zmq.DEALER)
        asking.connect(follower.replays["i7"])
        asking.send_multipart((b"", (14).to_bytes(8, "big")))
        replies: list[list[bytes]] = []
        while not replies or replies[-1][0] != END_SEQUENCE:
            assert asking.poll(WAIT_MS)
            replies.append(asking.recv_multipart()[-2:])
        asking.close(linger=0)
        assert [int.from_bytes(sequence, "big") for sequence, _ in replies[:-1]] == [14, 15]
        assert [payload for _, payload in replies[:-1]] == payloads_of(plan, plan.seed)[14:]
        follower.close()


def test_what_is_stored_and_what_is_removed_are_sent_apart_to_all_subscribers() -> None:
    plan = msgspec.structs.replace(PLAN, pattern="removed")
    with zmq.Context() as context, Publishers(plan, subscribers=2) as publishers:
        followers = [NaiveFollower(context) for _ in range(2)]
        publishers.connect(*followers)
        assert publishers.send().blocks == 64
        assert publishers.send().last_sequence == 93
        for follower in followers:
            assert [sequence for sequence, _ in follower.heard("i0", 32)] == list(range(0, 96, 3))
            follower.close()
