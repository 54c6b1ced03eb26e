"""The service as a process, fed over real ZMQ sockets by the simulated engine's publisher."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from replay.engine_cache import CacheSizes, EngineCache, Offload
from replay.publisher import Publisher, PublisherOptions
from replay.wire import AllBlocksCleared, BlockRemoved, BlockStored
from tests.processes import Service, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    opened = Publisher(PublisherOptions())
    yield opened
    opened.close()


TOKENS = list(range(1000, 1064))


def chain(first: int, tokens: list[int], parent: int | None = None) -> BlockStored:
    """Blocks with hashes first, first + 1, ... for the tokens, 16 a block."""
    return BlockStored(
        block_hashes=list(range(first, first + len(tokens) // 16)),
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def connect(service: Service, publisher: Publisher, **fields: object) -> None:
    service.register(publisher.endpoint, **fields)
    await_connection(service)


def is_connected(service: Service) -> bool:
    return all(one["Connected"] for one in service.get("/services")[1]["services"])


def await_connection(service: Service) -> None:
    until(lambda: is_connected(service), what="connection")
    # The link is up before the subscription has reached the publisher; nothing tells when it has.
    time.sleep(0.2)


def test_events_become_answers_and_answers_follow_removals(
    service: Service, publisher: Publisher
) -> None:
    connect(service, publisher)
    assert service.longest(TOKENS) == 0
    publisher.publish([chain(1, TOKENS)])
    until(lambda: service.longest(TOKENS) == 64, what="stored blocks")
    assert service.longest([*TOKENS, 1, 2, 3]) == 64
    assert service.longest(TOKENS[:40]) == 32
    publisher.publish([BlockRemoved(block_hashes=[3], medium="GPU")])
    until(lambda: service.longest(TOKENS) == 32, what="removed block")
    publisher.publish([AllBlocksCleared()])
    until(lambda: service.longest(TOKENS) == 0, what="cleared")


def test_a_restart_of_the_engine_leaves_no_ghosts(service: Service) -> None:
    first = Publisher(PublisherOptions())
    connect(service, first)
    first.publish([chain(1, TOKENS)])
    until(lambda: service.longest(TOKENS) == 64, what="stored blocks")
    first.close()
    until(lambda: not is_connected(service), what="the end of the first engine")
    second = Publisher(PublisherOptions(endpoint=first.endpoint))
    await_connection(service)
    other = list(range(5000, 5032))
    second.publish([chain(9, other)])
    until(lambda: service.longest(other) == 32, what="the new engine's blocks")
    assert service.longest(TOKENS) == 0
    assert service.metric("reprise_publisher_incarnation") == 2.0
    second.close()


def test_a_lost_batch_is_told_in_every_answer_until_a_clear(
    service: Service, publisher: Publisher
) -> None:
    connect(service, publisher)
    publisher.publish([chain(1, TOKENS)])
    publisher.publish([chain(50, TOKENS)], lost=True)
    publisher.publish([chain(70, list(range(16)))])
    body = json.dumps({"model": "m", "block_size": 16, "token_ids": TOKENS}).encode()

    def state() -> str:
        headers = {"Content-Type": "application/json"}
        return service.request("POST", "/query", body, headers)[2]["reprise-state"]

    until(lambda: state() == "degraded", what="the gap")
    assert service.metric("reprise_bridge_lost_batches_total") == 1.0
    assert service.get("/services")[1]["services"][0]["DegradedSince"] == 1
    publisher.publish([AllBlocksCleared()])
    until(lambda: state() == "exact", what="the clear")


def test_registrations_survive_and_the_bridge_reconnects_by_itself(
    service: Service, publisher: Publisher
) -> None:
    connect(service, publisher)
    publisher.publish([chain(1, TOKENS)])
    until(lambda: service.longest(TOKENS) == 64, what="stored blocks")
    before = service.digest()
    service.restart()
    assert service.longest(TOKENS) == 64
    assert service.digest() == before
    await_connection(service)
    publisher.publish([chain(5, list(range(16)), parent=4)])
    until(lambda: service.longest([*TOKENS, *range(16)]) == 80, what="events after the restart")
    assert service.metric("reprise_bridge_gaps_total") == 0.0


def test_one_instance_hosts_several_models_and_ranks(service: Service) -> None:
    publishers = [Publisher(PublisherOptions(), dp_rank=rank) for rank in (0, 1)]
    other = Publisher(PublisherOptions())
    for rank, one in enumerate(publishers):
        connect(service, one, dp_rank=rank)
    connect(service, other, modelname="n")
    publishers[0].publish([chain(1, TOKENS[:32])])
    publishers[1].publish([chain(1, TOKENS)])
    other.publish([chain(1, TOKENS[:16])])
    until(lambda: service.longest(TOKENS) == 64, what="rank 1")
    until(lambda: service.longest(TOKENS, model="n") == 16, what="the other model")
    until(lambda: service.query(TOKENS)["a"]["DP"] == {"0": 32, "1": 64}, what="both ranks")
    status, answer = service.post("/unregister", {"instance_id": "a", "dp_rank": 1})
    assert (status, answer["removed_instances"]) == (200, ["a|default|1"])
    assert service.longest(TOKENS) == 32
    assert service.longest(TOKENS, model="n") == 16
    for one in (*publishers, other):
        one.close()


def test_answers_equal_the_engines_own_truth_under_eviction_and_offloading(
    service: Service, publisher: Publisher
) -> None:
    connect(service, publisher)
    cache = EngineCache(
        CacheSizes(block_size=16, gpu_blocks=40, cpu_blocks=60), offload=Offload.WRITE_THROUGH
    )
    prompts = [[7 * n + i // 48 for i in range(16 * (1 + n % 7))] for n in range(120)]
    for prompt in prompts:
        publisher.publish(cache.run(prompt).events)
    publisher.publish([])

    def folded() -> bool:
        return service.metric("reprise_publisher_sequence") == len(prompts)

    until(folded, what="all batches folded")
    for prompt in prompts:
        answer = service.query(prompt)["a"]
        assert answer["longest_matched"] == cache.longest_held(prompt)
        assert answer["GPU"] == cache.longest_held(prompt, "GPU")
        assert answer["CPU"] == cache.longest_held(prompt, "CPU")


def test_a_conductor_client_that_speaks_msgpack_works_unchanged(
    service: Service, publisher: Publisher
) -> None:
    headers = {"Content-Type": "application/msgpack"}
    registration = {
        "endpoint": publisher.endpoint,
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "a",
        "block_size": 16,
        "dp_rank": 0,
        "tenant_id": "default",
        "hash_profile": {
            "strategy": "vllm_v1",
            "algorithm": "sha256_cbor",
            "python_hash_seed": "0",
            "index_projection": "low64_be",
        },
    }
    for _ in range(2):
        status, body, _headers = service.request(
            "POST", "/register", msgpack.packb(registration), headers
        )
        assert (status, msgpack.unpackb(body)) == (
            200,
            {"status": "registered successfully", "instance_id": "a"},
        )
    await_connection(service)
    publisher.publish([chain(1, TOKENS)])
    tokens = b"".join(token.to_bytes(4, "little") for token in TOKENS)
    query = msgpack.packb({"model": "m", "block_size": 16, "token_ids": tokens})

    def instances() -> dict[str, dict[str, object]]:
        status, body, _ = service.request("POST", "/query", query, headers)
        assert status == 200
        found: dict[str, dict[str, object]] = msgpack.unpackb(body)["instances"]
        return found

    until(lambda: instances()["a"]["longest_matched"] == 64, what="stored blocks")
    assert instances()["a"] == {
        "longest_matched": 64,
        "dp": {"0": 64},
        "rank_matches": {"0": {"gpu": 64, "cpu": 64, "disk": 64}},
        "gpu": 64,
        "cpu": 64,
        "disk": 64,
    }


def test_the_configuration_file_of_conductor_is_followed(
    tmp_path: Path, publisher: Publisher
) -> None:
    config = tmp_path / "conductor_config.json"
    entry = {"type": "vLLM", "modelname": "m", "block_size": 16, "dp_rank": 0}
    config.write_text(
        json.dumps(
            {
                "http_server_port": 1,
                "kvevent_instance": {
                    "node1": entry | {"endpoint": publisher.endpoint, "unknown": 1},
                    "bad": entry | {"endpoint": "tcp://127.0.0.1:1", "block_size": 0},
                },
            }
        )
    )
    with Service(tmp_path / "data", "--config", str(config)) as service:
        await_connection(service)
        publisher.publish([chain(1, TOKENS)])
        until(lambda: service.longest(TOKENS, "node1") == 64, what="stored blocks")
        assert service.get("/services")[1]["count"] == 1
        assert "Left out the publisher `bad`" in service.log()


def test_the_service_stops_cleanly_on_a_signal(service: Service) -> None:
    assert service.stop() == 0


def refused(*arguments: str) -> str:
    """What `reprise` says where it will not start."""
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "up", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_an_occupied_port_is_told_at_once(service: Service, tmp_path: Path) -> None:
    port = service.base_url.rpartition(":")[2]
    text = refused("--data", str(tmp_path / "other"), "--port", port)
    assert f"Expected to listen on 127.0.0.1:{port}" in text


def test_a_data_directory_in_use_is_told_at_once(service: Service) -> None:
    text = refused("--data", str(service.data), "--port", "0")
    assert "no other process uses" in text
    assert str(service.data) in text


def test_a_malformed_configuration_is_told_at_once(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"http_server_port": "many"}')
    text = refused("--config", str(config), "--data", str(tmp_path / "data"))
    assert "Expected `int`, got `str` - at `$.http_server_port`" in text


def test_an_engine_that_is_not_up_yet_is_followed_when_it_comes(service: Service) -> None:
    early = Publisher(PublisherOptions())
    early.close()
    service.register(early.endpoint)
    late = Publisher(PublisherOptions(endpoint=early.endpoint))
    await_connection(service)
    late.publish([chain(1, TOKENS)])
    until(lambda: service.longest(TOKENS) == 64, what="stored blocks")
    late.close()
