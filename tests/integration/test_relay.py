"""`reprise relay`: what passes it means the same, nobody reads it, and only those who may have it.

Each engine of these tests is followed twice by one service, as `plain` without a relay and as
`relayed` through one: once both have heard all, their tables must be the same.
"""

import itertools
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

from lab.engines.engine import EngineOptions
from lab.engines.process import EngineProcess
from lab.traffic.http_json import JsonConnection
from tests.load import Engine, Load
from tests.processes import Service, until
from tests.relays import Keys, RelayProcess, make_keys
from tests.sniffer import Sniffer


@pytest.fixture
def bridge(tmp_path: Path) -> Keys:
    return make_keys(tmp_path / "bridge")


@pytest.fixture
def service(tmp_path: Path, bridge: Keys) -> Iterator[Service]:
    with Service(tmp_path / "data", "--set", f"engines.curve_key={bridge.path}") as started:
        yield started


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine("plain")
    yield made
    made.publisher.close()


def addresses(engine: Engine) -> tuple[str, str]:
    return engine.publisher.endpoint, engine.publisher.replay_endpoint


def standing(service: Service, instance: str) -> tuple[str, str]:
    """State and reason of one instance."""
    for one in service.get("/services")[1]["services"]:
        if one["InstanceID"] == instance:
            return one["State"], one["Reason"]
    raise AssertionError(f"{instance} is not registered")


def sequence(service: Service, instance: str) -> int:
    for one in service.get("/services")[1]["services"]:
        if one["InstanceID"] == instance:
            return int(one["Sequence"])
    raise AssertionError(f"{instance} is not registered")


def entries(service: Service, instance: str) -> list[tuple[int, str]]:
    return [
        (context["entries"], context["digest"])
        for context in service.digest()["contexts"]
        if context["instance_id"] == instance
    ]


def same_answers(service: Service, prompts: Sequence[Sequence[int]]) -> int:
    """How many of the prompts are matched by both; each must be by neither or both, as far."""
    matched = 0
    for prompt in prompts:
        found = service.query(prompt)
        plain, relayed = found.get("plain"), found.get("relayed")
        assert plain == relayed, f"{prompt[:3]}...: {plain} and {relayed}"
        matched += plain is not None
    return matched


def both_heard(service: Service, published: int) -> None:
    for name in ("plain", "relayed"):
        until(
            lambda name=name: (
                sequence(service, name) == published - 1  # type: ignore[misc]
                and standing(service, name)[0] == "exact"
            ),
            what=f"{name} has {published} batches: {service.get('/services')[1]}",
            timeout_s=60,
        )


def test_what_passes_is_the_same_and_cannot_be_read(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    """Also of batches that were lost, which are replayed through the relay."""
    plain_wires = [Sniffer(("127.0.0.1", int(at.rpartition(":")[2]))) for at in addresses(engine)]
    with RelayProcess(tmp_path, [addresses(engine)], [bridge.public]) as relay:
        wires = [Sniffer(("127.0.0.1", port)) for port in relay.ports[0]]
        ports = (wires[0].port, wires[1].port)
        fields = engine.registration() | {"instance_id": "relayed"}
        service.register(**fields | relay.registration(ports=ports))  # type: ignore[arg-type]
        plain = {
            "endpoint": f"tcp://127.0.0.1:{plain_wires[0].port}",
            "replay_endpoint": f"tcp://127.0.0.1:{plain_wires[1].port}",
        }
        service.register(**engine.registration() | plain)  # type: ignore[arg-type]
        load = Load(7, [engine], pause_s=0.002)
        load.start()
        until(lambda: engine.published > 300, what="batches")
        for _ in range(20):  # in between: neither hears of them but by a replay
            prompt = Load.prompt(random.Random(engine.published).randrange(300))
            engine.publisher.publish(engine.cache.run(prompt).events, lost=True)
            engine.published += 1
            time.sleep(0.01)
        load.stop()
        engine.serve(Load.prompt(3))
        both_heard(service, engine.published)
        assert same_answers(service, load.sample()) > 20
        assert entries(service, "plain")[0][0] == entries(service, "relayed")[0][0] > 100
        assert relay.metric("reprise_relay_replayed_messages_total") > 0
        assert relay.metric("reprise_internal_errors_total") == 0
        seen = b"".join(bytes(wire.seen) for wire in wires)
        readable = b"".join(bytes(wire.seen) for wire in plain_wires)
        for wire in (*wires, *plain_wires):
            wire.close()
    # 16 tokens of one block, as they are in a message of msgpack; and what names each event.
    for secret in (bytes([29]) * 16, b"BlockStored"):
        assert secret in readable, "the wire without a relay is read, or nothing is proven"
        assert secret not in seen
    assert len(seen) > len(readable) / 2
    assert engine.published > 300


def test_a_service_hears_at_once_that_an_engine_behind_a_relay_has_gone(
    tmp_path: Path, service: Service, bridge: Keys
) -> None:
    """And takes the next process for another one, whose cache is empty."""
    process = EngineProcess(EngineOptions(instance_id="plain"))
    ready = process.await_ready()
    rank = ready.ranks[0]
    options = process.options
    publisher = type(options.publisher)(
        endpoint=rank.endpoint, replay_endpoint=rank.replay_endpoint
    )
    options = EngineOptions(instance_id="plain", publisher=publisher, http_port=ready.http_port)
    try:
        with RelayProcess(
            tmp_path, [(rank.endpoint, rank.replay_endpoint)], [bridge.public]
        ) as relay:
            fields = {"modelname": ready.model, "block_size": ready.block_size}
            service.register(
                **fields | relay.registration() | {"instance_id": "relayed"}  # type: ignore[arg-type]
            )
            service.register(
                rank.endpoint, replay_endpoint=rank.replay_endpoint, instance_id="plain", **fields
            )
            prompt = list(range(10 * ready.block_size))

            def matched() -> list[int]:
                found = service.query(prompt, model=ready.model, block_size=ready.block_size)
                names = ("plain", "relayed")
                return [found.get(name, {}).get("longest_matched", 0) for name in names]

            generate(ready.http_port, prompt)
            until(lambda: matched() == [len(prompt)] * 2, what=f"both know it: {matched()}")

            def are_exact() -> bool:
                """They have to hear something live, so something is sent."""
                generate(ready.http_port, [next(numbers)] * ready.block_size)
                return all(standing(service, name)[0] == "exact" for name in ("plain", "relayed"))

            numbers = itertools.count(1_000)
            until(are_exact, what="exact")

            process.terminate()
            process.reap(time.monotonic())  # kill -9
            until(
                lambda: all(standing(service, name)[0] != "exact" for name in ("plain", "relayed")),
                what="the engine is known to be gone",
            )
            process = EngineProcess(options)
            process.await_ready()
            other = [7] * (3 * ready.block_size)
            generate(ready.http_port, other)
            until(lambda: matched() == [0, 0], what=f"both know that it is gone: {matched()}")
            until(
                are_exact,
                what=f"exact again: {service.get('/services')[1]}\n{relay.output()[-2000:]}",
                timeout_s=60,
            )
            assert relay.metric("reprise_relay_links_total") == 2
    finally:
        process.terminate()
        process.reap(time.monotonic() + 5)


def generate(http_port: int, prompt: list[int]) -> None:
    with closing(JsonConnection(f"http://127.0.0.1:{http_port}")) as connection:
        connection.request("POST", "/generate", {"token_ids": prompt, "answer_ids": []})


def test_what_is_sent_while_a_relay_is_frozen_and_then_killed_is_replayed(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    with RelayProcess(tmp_path, [addresses(engine)], [bridge.public]) as relay:
        fields = engine.registration() | {"instance_id": "relayed"}
        service.register(**fields | relay.registration())  # type: ignore[arg-type]
        service.register(**engine.registration())  # type: ignore[arg-type]
        load = Load(8, [engine], pause_s=0.003)
        load.start()
        until(lambda: sequence(service, "relayed") > 100, what="batches")
        for how in ("frozen", "killed"):
            assert relay.process is not None
            if how == "killed":
                relay.kill()
            else:
                relay.process.send_signal(signal.SIGSTOP)
            until(lambda: standing(service, "relayed")[0] != "exact", what="it is missed")
            at = engine.published
            until(lambda at=at: engine.published > at + 100, what="batches that nobody relays")  # type: ignore[misc]
            if how == "killed":
                relay.start()
            else:
                relay.process.send_signal(signal.SIGCONT)
            until(
                lambda at=at: sequence(service, "relayed") > at + 100,  # type: ignore[misc]
                what="they are replayed",
            )
        load.stop()
        both_heard(service, engine.published)
        assert same_answers(service, load.sample()) > 20
        assert service.metric("reprise_internal_errors_total") == 0


def test_bridges_come_and_go_with_their_keys(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    with RelayProcess(tmp_path, [addresses(engine)], []) as relay:
        assert "No bridge is listed" in relay.output()
        fields = engine.registration() | {"instance_id": "relayed"}
        service.register(**fields | relay.registration())  # type: ignore[arg-type]
        until(
            lambda: "it does not list this process's public key" in service.whole_log(),
            what="the log says why there is no link",
        )
        assert bridge.public in relay.output(), "whoever runs the relay can list it"
        assert relay.metric("reprise_relay_refused_total") > 0
        relay.allow(bridge.public)
        engine.serve(Load.prompt(3))
        until(lambda: sequence(service, "relayed") == 0, what="what was sent before is replayed")
        engine.serve(Load.prompt(4))
        until(lambda: standing(service, "relayed")[0] == "exact", what="it is let in")

        relay.bridge_keys.write_text("no key\n")
        until(lambda: relay.health()["conditions"], what="the file is said to be wrong")
        assert "line 1 does not begin with one" in str(relay.health()["conditions"])
        assert standing(service, "relayed")[0] == "exact", "the list of before goes on"

        relay.allow()
        until(lambda: standing(service, "relayed")[0] != "exact", what="it is let in no more")
        relay.allow(bridge.public)
        until(
            lambda: service.get("/services")[1]["services"][0]["Connected"],
            what="it is let in again",
        )
        engine.serve(Load.prompt(5))
        until(lambda: standing(service, "relayed")[0] == "exact", what="it is exact again")
        assert relay.stop() == 0


def test_ends_that_do_not_fit_are_named(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    other = make_keys(tmp_path / "other")
    with RelayProcess(tmp_path, [addresses(engine)] * 1, [bridge.public]) as relay:
        fields = engine.registration()
        through = relay.registration()
        service.register(
            **fields | through | {"instance_id": "a", "curve_server_key": other.public}  # type: ignore[arg-type]
        )
        until(
            lambda: "it may have another key than the curve_server_key" in service.whole_log(),
            what="a relay with another key",
        )
        gone = {"instance_id": "a", "type": "vLLM", "dp_rank": 0}
        assert service.post("/unregister", gone)[0] == 200
        service.register(
            **fields | through | {"instance_id": "b", "curve_server_key": ""}  # type: ignore[arg-type]
        )
        until(
            lambda: (
                "it encrypts, but is registered without a curve_server_key" in service.whole_log()
            ),
            what="a relay that is taken for an engine",
        )
        service.register(
            **fields | {"instance_id": "c", "curve_server_key": relay.keys.public}  # type: ignore[arg-type]
        )
        until(
            lambda: (
                "it does not encrypt, but is registered with a curve_server_key"
                in service.whole_log()
            ),
            what="an engine that is taken for a relay",
        )
        for instance in ("b", "c"):
            assert standing(service, instance)[0] != "exact"


def test_strangers_end_nothing(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    with RelayProcess(tmp_path, [addresses(engine)], [bridge.public]) as relay:
        fields = engine.registration() | {"instance_id": "relayed"}
        service.register(**fields | relay.registration())  # type: ignore[arg-type]
        service.register(**engine.registration())  # type: ignore[arg-type]
        load = Load(9, [engine], pause_s=0.003)
        load.start()
        stopping = threading.Event()
        noise = [
            threading.Thread(target=disturb, args=(port, seed, stopping))
            for seed, port in enumerate(relay.ports[0])
        ]
        for thread in noise:
            thread.start()
        until(lambda: engine.published > 600, what="batches")
        stopping.set()
        for thread in noise:
            thread.join()
        load.stop()
        both_heard(service, engine.published)
        assert same_answers(service, load.sample()) > 20
        assert relay.metric("reprise_internal_errors_total") == 0
        assert relay.metric("reprise_relay_links_total") == 1


def disturb(port: int, seed: int, stopping: threading.Event) -> None:
    """Bytes, sockets of ZMQ without keys, connections that say nothing, and requests of strangers
    and without a sense.
    """
    chance = random.Random(seed)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    silent: list[socket.socket] = []
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x01CURVE" + b"\0" * 48
    while not stopping.is_set():
        one = socket.create_connection(("127.0.0.1", port))
        silent.append(one)
        if chance.random() < 0.8:
            begin = greeting if chance.random() < 0.5 else b""
            one.sendall(begin + chance.randbytes(chance.randrange(1, 3000)))
        with context.socket(chance.choice([zmq.SUB, zmq.DEALER, zmq.PUSH, zmq.ROUTER])) as plain:
            plain.linger = 0
            if chance.random() < 0.5:
                plain.curve_serverkey = zmq.curve_keypair()[0]
                plain.curve_publickey, plain.curve_secretkey = zmq.curve_keypair()
            plain.connect(f"tcp://127.0.0.1:{port}")
            time.sleep(0.02)
        if len(silent) > 100:
            silent.pop(0).close()
    for one in silent:
        one.close()
    context.destroy(linger=0)


def test_a_listed_bridge_that_asks_without_end_is_bounded(
    tmp_path: Path, service: Service, bridge: Keys, engine: Engine
) -> None:
    """A bridge is trusted with what it hears, and not with the relay's memory."""
    secret = BridgeSecret(bridge.path)
    with RelayProcess(tmp_path, [addresses(engine)], [bridge.public]) as relay:
        fields = engine.registration() | {"instance_id": "relayed"}
        service.register(**fields | relay.registration())  # type: ignore[arg-type]
        for number in range(50):
            engine.serve(Load.prompt(number))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        asking = []
        for _ in range(300):  # none of which reads its replies
            one = context.socket(zmq.DEALER)
            one.linger = 0
            one.rcvhwm = 1
            one.curve_serverkey = relay.keys.public.encode()
            one.curve_publickey, one.curve_secretkey = secret.pair
            one.connect(f"tcp://127.0.0.1:{relay.ports[0][1]}")
            for _ in range(5):  # more would keep the engine itself busy for as long as it is asked
                one.send_multipart([b"", struct.pack(">Q", 0)])
            one.send_multipart([b"", b"a request of a strange form", b"", b""])
            asking.append(one)
        until(
            lambda: relay.metric("reprise_relay_replays_given_up_total") > 0,
            what="the least recent replays were given up",
        )
        engine.publisher.publish(engine.cache.run(Load.prompt(77)).events, lost=True)
        engine.published += 1
        engine.serve(Load.prompt(78))
        until(
            lambda: sequence(service, "relayed") == engine.published - 1,
            what=f"the other bridge is served: {service.get('/services')[1]}",
            timeout_s=60,
        )
        until(lambda: standing(service, "relayed")[0] == "exact", what="exact", timeout_s=60)
        assert relay.metric("reprise_internal_errors_total") == 0
        context.destroy(linger=0)


class BridgeSecret:
    """Both keys of a file."""

    def __init__(self, path: Path) -> None:
        public, secret = zmq.auth.load_certificate(path)
        assert secret is not None
        self.pair = (public, secret)


def test_a_service_without_keys_or_that_wants_them_refuses(tmp_path: Path, engine: Engine) -> None:
    key = make_keys(tmp_path / "relay")
    with Service(tmp_path / "without") as service:
        body: dict[str, Any] = engine.registration() | {"curve_server_key": key.public}
        status, answer = service.post("/register", body)
        assert (status, "engines.curve_key" in str(answer)) == (400, True), answer
    options = ("--set", "engines.require_curve=true", "--set", f"engines.curve_key={key.path}")
    with Service(tmp_path / "with", *options) as service:
        status, answer = service.post("/register", engine.registration())
        assert (status, "engines.require_curve" in str(answer)) == (400, True), answer
