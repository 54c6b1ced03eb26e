"""Two real vLLM servers and `reprise up`: answers beside the engines' own `cached_tokens`.

Each answer is equal, or explained by an event of the log between the question and the engine's
answer, or by the last block of a whole prompt, of which an engine always computes one token.
Skipped where no engine is installed: `make engines`, or REPRISE_VLLM names the folder.
"""

import random
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from devtools.broker import free_ports
from devtools.engines import Engines, MissingEnginesError, engines
from tests.processes import Service, until
from tests.vllm import (
    ADAPTER,
    BLOCK,
    BLOCKS,
    MODEL,
    START_S,
    VllmEngine,
    cached_tokens,
    prompt_ids,
    settled,
)

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")

pytestmark = pytest.mark.timeout(2 * START_S + 600)

REQUESTS = 200
POSITIONS_LOOKED_AT = 60
WORDS = (Path(__file__).parents[2] / "docs" / "topics.md").read_text().split()
NAMES = ("e1", "e2")


class Difference(NamedTuple):
    """An answer that is not the engine's.

    Attributes:
        said: by Reprise.
        found: by the engine, in its cache.
        why: "" where nothing explains it.
    """

    said: int
    found: int
    why: str


class World:
    """The engines, and the service beside them.

    Attributes:
        cached: tokens of prompts that were compared, that engines had in their caches.
        prompts: tokens of these prompts.
    """

    def __init__(self, installed: Engines, folder: Path, service: Service) -> None:
        self.cached = 0
        self.prompts = 0
        self.model = installed.model
        self.service = service
        self.engines: dict[str, VllmEngine] = {}
        for number, name in enumerate(NAMES):
            port, events, replay = free_ports(3)
            self.engines[name] = VllmEngine(
                installed,
                folder,
                (port, events, replay),
                cores=str(number),
                options=(
                    *("--enable-lora", "--max-lora-rank", "8", "--trust-request-chat-template"),
                    *("--lora-modules", f"{ADAPTER}={installed.model / 'adapter'}"),
                ),
            )

    def register(self, name: str, *, block_size: int = BLOCK, **fields: object) -> None:
        engine = self.engines[name]
        body = {
            "endpoint": engine.events,
            "replay_endpoint": engine.replay,
            "http_endpoint": engine.url,
            "type": "vLLM",
            "modelname": MODEL,
            "instance_id": name,
            "block_size": block_size,
            "dp_rank": 0,
        }
        status, answer = self.service.post("/register", body | fields)
        assert status == 200, answer

    def unregister(self, name: str) -> None:
        status, answer = self.service.post("/unregister", {"instance_id": name, "dp_rank": 0})
        assert status == 200, answer

    def clear(self, name: str) -> None:
        """Empties its cache, of which it says so with the next step that it computes."""
        engine = self.engines[name]
        engine.answered({"prompt": "one"})
        status, answer = engine.post("/reset_prefix_cache", {})
        assert status == 200, answer
        engine.answered({"prompt": "two"})
        settled()

    def held(self, name: str, body: dict[str, Any], as_of: str = "") -> tuple[int, int]:
        """What the service says of a request's text, and at which position of its log."""
        asked = {"model": MODEL, "block_size": BLOCK} | _named(body)
        path = f"/query?as_of={as_of}" if as_of else "/query"
        status, answer, headers = self.service.exchange(path, asked)
        assert status == 200, answer
        assert headers["reprise-tokens"].startswith("local;"), headers
        found = answer.get("default", {}).get(name, {}).get("longest_matched", 0)
        return int(found), int(headers["reprise-position"].partition(":")[2])

    def difference(self, name: str, body: dict[str, Any]) -> Difference | None:
        """None where the engine finds in its cache what the service says of the text."""
        said, position = self.held(name, body)
        answer = self.engines[name].answered(body)
        found = cached_tokens(answer)
        self.cached += found
        self.prompts += len(prompt_ids(answer))
        if said == found:
            return None
        prompt = prompt_ids(answer)
        if said == found + BLOCK and said == len(prompt):
            return Difference(said, found, "the last block of a whole prompt")
        settled()
        _, until_position = self.held(name, body)
        for at in range(position, min(until_position, position + POSITIONS_LOOKED_AT) + 1):
            if self.held(name, body, f"0:{at}")[0] == found:
                return Difference(said, found, f"an event of the log at 0:{at}")
        return Difference(said, found, "")


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """The request as the service takes it: an adapter has a field of its own."""
    if body.get("model") == ADAPTER:
        return {**body, "model": MODEL, "lora_name": ADAPTER}
    return body


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    installed = engines()
    try:
        installed.check()
    except MissingEnginesError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("engines")
    settings = folder / "reprise.toml"
    settings.write_text(f'[tokens]\n{MODEL} = "{installed.model}"\n')
    with Service(folder / "data", "--settings", str(settings)) as service:
        made = World(installed, folder, service)
        with made.engines["e1"], made.engines["e2"]:
            for engine in made.engines.values():
                engine.wait()
            for name in NAMES:
                made.register(name)
                made.clear(name)  # so that nothing is unknown of its cache
            until(lambda: _states(service) == {"exact"}, what="exact answers")
            yield made


def _states(service: Service) -> set[str]:
    return {one["State"] for one in service.get("/services")[1]["services"]}


def _words(random_: random.Random, count: int) -> str:
    return " ".join(random_.choice(WORDS) for _ in range(count))


def _requests(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Conversations that go on, completions, salts, adapters, and prompts that come again."""
    random_ = random.Random(seed)
    systems = [_words(random_, random_.randint(200, 500)) for _ in range(6)]
    open_: list[dict[str, Any]] = []
    for _ in range(count):
        kind = random_.random()
        if open_ and kind < 0.45:
            body = random_.choice(open_)
            if "messages" in body and kind < 0.3:
                turn = [
                    {"role": "assistant", "content": _words(random_, 20)},
                    {"role": "user", "content": [{"type": "text", "text": _words(random_, 20)}]},
                ]
                body = {**body, "messages": [*body["messages"], *turn][:12]}
        elif kind < 0.6:
            body = {"prompt": f"{random_.choice(systems)} {_words(random_, 30)}"}
        else:
            system = {"role": "system", "content": random_.choice(systems)}
            body = {"messages": [system, {"role": "user", "content": _words(random_, 30)}]}
            if random_.random() < 0.2:
                body["cache_salt"] = f"salt {random_.randint(0, 2)}"
            if random_.random() < 0.2:
                body["model"] = ADAPTER
        open_.append(body)
        yield body


def _compare(world: World, seed: int, count: int) -> Counter[str]:
    random_ = random.Random(seed)
    found: Counter[str] = Counter()
    for body in _requests(seed, count):
        name = random_.choice(NAMES)
        difference = world.difference(name, body)
        found["equal" if difference is None else difference.why.partition(" at ")[0]] += 1
        assert difference is None or difference.why, (seed, name, difference, body)
        settled(0.02)
    print(f"{count} requests: {dict(found)}")
    return found


def test_answers_are_what_the_engines_find_in_their_caches(world: World) -> None:
    world.cached = world.prompts = 0
    found = _compare(world, 1, REQUESTS)
    assert found["equal"] > REQUESTS * 0.9
    print(f"{world.prompts} tokens, of which {world.cached} were cached")
    assert 0.2 < world.cached / world.prompts < 0.95
    room = len(NAMES) * BLOCKS * BLOCK
    assert world.prompts - world.cached > 2 * room  # so blocks were evicted, again and again
    assert world.service.metric("reprise_bridge_dropped_total") == 0
    services = world.service.get("/services")[1]["services"]
    left_out = [reason for one in services for reason in one["LeftOut"]]
    assert "unheld_removed" not in left_out  # each eviction was of a block that was announced


def test_text_has_the_tokens_that_the_engines_compute(world: World) -> None:
    """Forms of chats, one after the other, by the token ids that the engine itself names."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"city": "Köln", "days": 3}'},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    user = {"role": "user", "content": "Hello,  wörld!\n\n\tdef f(x)"}
    bodies: list[dict[str, Any]] = [
        {"messages": [user]},
        {"messages": [user], "add_generation_prompt": False},
        {"messages": [user, {"role": "assistant", "content": "so "}]}
        | {"continue_final_message": True, "add_generation_prompt": False},
        {"messages": [user], "tools": tools, "tool_choice": "none"},
        {
            "messages": [
                user,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]},
            ]
        },
        {"messages": [{"role": "developer", "content": "terse"}, user]},
        {"messages": [user, {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]},
        {"messages": [user], "add_special_tokens": True},
        {"messages": [user], "truncate_prompt_tokens": 7, "truncation_side": "left"},
        {"prompt": "Hello,  wörld! <|im_start|>user\n"},
        {"prompt": "no", "add_special_tokens": False},
        {"prompt": [5, 6, 7]},
    ]
    for body in bodies:
        ids = prompt_ids(world.engines["e1"].answered(body))
        asked = {"model": MODEL, "block_size": BLOCK, **body}
        status, answer, headers = world.service.exchange("/query", asked)
        assert status == 200, answer
        source = "given" if isinstance(body.get("prompt"), list) else "local"
        assert headers["reprise-tokens"].startswith(f"{source}; count={len(ids)};"), (body, ids)
    compared = world.service.metric("reprise_tokens_compared_total", result="equal")
    assert compared >= 6  # the probes of two engines, at least
    assert world.service.metric("reprise_tokens_compared_total", result="different") == 0


def test_after_a_kill_of_the_service_answers_are_right_again(world: World) -> None:
    world.service.restart()
    until(lambda: "recovering" not in _states(world.service), what="a service that answers")
    found = _compare(world, 2, 40)
    assert found["equal"] >= 30


def test_after_a_restart_of_an_engine_nothing_of_its_old_cache_is_said(world: World) -> None:
    body = {"messages": [{"role": "user", "content": _words(random.Random(3), 200)}]}
    engine = world.engines["e2"]
    engine.answered(body)
    until(lambda: world.held("e2", body)[0] > 0, what="a cache")
    engine.end(signal.SIGKILL)
    engine.begin()
    engine.wait()
    until(lambda: world.held("e2", body)[0] == 0, what="an empty cache")
    found = _compare(world, 4, 30)
    assert found["equal"] >= 20


def test_a_wrong_block_size_is_a_doubt_by_name(world: World) -> None:
    world.unregister("e2")
    world.register("e2", block_size=16)
    try:
        body = {"messages": [{"role": "user", "content": _words(random.Random(5), 200)}]}
        world.engines["e2"].answered(body)

        def reasons() -> set[str]:
            shown = world.service.get("/services")[1]["services"]
            return {one["Reason"] for one in shown if one["InstanceID"] == "e2"}

        until(lambda: "block_size" in reasons(), what="the reason block_size")
        findings = world.service.get("/doctor")[1]["findings"]
        assert any("block_size" in one["code"] for one in findings), findings
    finally:
        world.unregister("e2")
        world.register("e2")
        world.clear("e2")


def test_files_of_another_model_are_found_out_and_the_engine_is_asked(
    world: World, tmp_path: Path
) -> None:
    other = tmp_path / "model"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (other / name).write_bytes((world.model / name).read_bytes())
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(template.replace("assistant", "model"))
    settings = tmp_path / "reprise.toml"
    settings.write_text(f'[tokens]\n{MODEL} = "{other}"\n')
    engine = world.engines["e1"]
    body = {"messages": [{"role": "user", "content": _words(random.Random(6), 100)}]}
    ids = prompt_ids(engine.answered(body))
    with Service(tmp_path / "data", "--settings", str(settings)) as service:
        fields = {
            "endpoint": engine.events,
            "http_endpoint": engine.url,
            "type": "vLLM",
            "modelname": MODEL,
            "instance_id": "e1",
            "block_size": BLOCK,
            "dp_rank": 0,
        }
        assert service.post("/register", fields)[0] == 200

        def reasons() -> set[str]:
            found = service.get("/health")[1]["conditions"]
            return {one["reason"] for one in found if one["part"] == "tokens"}

        until(lambda: reasons() == {"differs"}, what="a difference")
        asked = {"model": MODEL, "block_size": BLOCK, **body}
        status, answer, headers = service.exchange("/query", asked)
        assert status == 200, answer
        assert headers["reprise-tokens"] == f"engine; count={len(ids)}; reused=0"
        found = service.get("/doctor")[1]["findings"]
        assert any("are not those that" in one["cause"] for one in found), found


def _ports_in_a_row() -> int:
    """The first of two that nothing uses: rank 1 of a server publishes one above rank 0."""
    while True:
        (port,) = free_ports(1)
        with socket.socket() as other:
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_two_ranks_of_one_server_are_told_apart(tmp_path: Path) -> None:
    installed = engines()
    try:
        installed.check()
    except MissingEnginesError as error:
        pytest.skip(str(error))
    settings = tmp_path / "reprise.toml"
    settings.write_text(f'[tokens]\n{MODEL} = "{installed.model}"\n')
    events, replay = _ports_in_a_row(), _ports_in_a_row()
    ports = (free_ports(1)[0], events, replay)
    random_ = random.Random(7)
    systems = [_words(random_, 300) for _ in range(4)]
    with (
        Service(tmp_path / "data", "--settings", str(settings)) as service,
        VllmEngine(
            installed, tmp_path, ports, cores="0|1", options=("--data-parallel-size", "2")
        ) as engine,
    ):
        engine.wait()
        for rank in (0, 1):
            fields = {
                "endpoint": f"tcp://127.0.0.1:{events + rank}",
                "replay_endpoint": f"tcp://127.0.0.1:{replay + rank}",
                "http_endpoint": engine.url,
                "type": "vLLM",
                "modelname": MODEL,
                "instance_id": "e",
                "block_size": BLOCK,
                "dp_rank": rank,
            }
            assert service.post("/register", fields)[0] == 200
            engine.answered({"prompt": _words(random_, 60)}, rank)  # a rank that has said something
        until(lambda: _states(service) == {"exact"}, what="exact answers")
        cached = 0
        for _ in range(40):
            rank = random_.randint(0, 1)
            system = {"role": "system", "content": random_.choice(systems)}
            body = {"messages": [system, {"role": "user", "content": _words(random_, 20)}]}
            asked = {"model": MODEL, "block_size": BLOCK, **body}
            answer = service.post("/query", asked)[1]["default"]["e"]["DP"]
            found = cached_tokens(engine.answered(body, rank))
            assert answer[str(rank)] == found
            cached += found
            settled(0.5)
        assert cached > 40 * BLOCK
