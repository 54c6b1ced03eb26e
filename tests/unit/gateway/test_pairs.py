"""One engine computes the prompt, another one decodes."""

import json
from typing import Any

import pytest

from schemas.registration import Label, PublisherKind, Registration
from tests.gateway import Deed, ScriptedEngine, Seen, World
from tests.unit.gateway.test_exchange import PROMPT, STREAM, run

HANDED = {"remote_engine_id": "e-1", "remote_block_ids": [[1, 2]], "remote_port": 5600}


async def pair(found: World, kind: str = "vLLM", ranks: int = 1, **labels: str) -> None:
    """Two engines of each role; all prompts are to be computed apart."""
    for name in ("p-1", "p-2", "d-1", "d-2"):
        engine = found.engines[name] = ScriptedEngine(name)
        await engine.start()
        for rank in range(ranks):
            await found.table.register(
                Registration(
                    endpoint=f"tcp://127.0.0.1:{engine.port + rank}",
                    kind=PublisherKind(kind),
                    model_name="m",
                    instance_id=name,
                    block_size=16,
                    dp_rank=rank,
                    http_endpoint=engine.url,
                    role="prefill" if name.startswith("p") else "decode",
                    labels=tuple(sorted(Label(*one) for one in labels.items())),
                )
            )
        engine.answers_with = answer_of(name)
    found.gateway.fleet.forget()


def answer_of(name: str) -> Any:
    def answer(seen: Seen) -> bytes:
        document: dict[str, Any] = {"engine": name, "echo": seen.document.get("user")}
        if (seen.document.get("kv_transfer_params") or {}).get("do_remote_decode"):
            document["kv_transfer_params"] = HANDED
        return json.dumps(document).encode()

    return answer


def by_role(found: World, role: str) -> list[Seen]:
    return [
        seen for name, one in found.engines.items() if name.startswith(role) for seen in one.seen
    ]


LONG = {"model": "m", "prompt": list(range(4000)), "user": "u", "max_tokens": 50}


def test_vllm_decodes_with_what_the_first_engine_says() -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        got = await found.client.post(LONG | {"min_tokens": 3}, "/v1/completions")
        assert got.status == 200
        [first], [second] = by_role(found, "p"), by_role(found, "d")
        said = first.document["kv_transfer_params"]
        assert (said["do_remote_decode"], said["do_remote_prefill"]) == (True, False)
        assert (first.document["max_tokens"], first.document["stream"]) == (1, False)
        assert "min_tokens" not in first.document
        assert first.document["prompt"] == LONG["prompt"]
        assert second.document == LONG | {"min_tokens": 3, "kv_transfer_params": HANDED}
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert recent.decision.decode >= 0
        assert [one.event.value for one in recent.outcomes] == ["first_token", "completed"]

    run(scenario)


def test_vllm_streams_from_the_one_that_decodes() -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        got = await found.client.post(LONG | {"stream": True}, "/v1/completions")
        assert got.events[-1] == "[DONE]"
        assert "stream_options" not in by_role(found, "p")[0].document
        assert by_role(found, "d")[0].document["stream"] is True

    run(scenario)


def test_mooncake_is_told_where_the_cache_is() -> None:
    async def scenario(found: World) -> None:
        await pair(found, kv_connector="mooncake", kv_engine_id="e-9", bootstrap_port="9001")
        assert (await found.client.post(LONG, "/v1/completions")).status == 200
        first = by_role(found, "p")[0].document["kv_transfer_params"]
        second = by_role(found, "d")[0].document["kv_transfer_params"]
        assert first["transfer_id"] == second["transfer_id"]
        assert second["remote_engine_id"] == "e-9"
        assert second["remote_bootstrap_addr"] == "http://127.0.0.1:9001"

    run(scenario)


def test_mooncake_is_told_the_rank_that_has_the_cache() -> None:
    async def scenario(found: World) -> None:
        await pair(found, ranks=2, kv_connector="mooncake", kv_engine_id="e-9")
        await found.client.post(LONG, "/v1/completions")
        [first], [second] = by_role(found, "p"), by_role(found, "d")
        rank = first.headers["x-data-parallel-rank"]
        said = second.document["kv_transfer_params"]
        assert said["remote_engine_id"] == f"e-9_dp{rank}"

    run(scenario)


def test_mooncake_without_a_name_keeps_no_cache_for_others() -> None:
    async def scenario(found: World) -> None:
        await pair(found, kv_connector="mooncake")
        assert (await found.client.post(LONG, "/v1/completions")).status == 200
        [first], [second] = by_role(found, "p"), by_role(found, "d")
        assert "kv_transfer_params" not in first.document
        assert second.document == LONG

    run(scenario)


def test_sglang_is_told_the_rank_that_has_the_cache() -> None:
    async def scenario(found: World) -> None:
        await pair(found, "SGLang", ranks=2)
        await found.client.post(LONG, "/v1/completions")
        [first], [second] = by_role(found, "p"), by_role(found, "d")
        rank = int(first.headers["x-data-parallel-rank"])
        assert second.document == first.document | {"disagg_prefill_dp_rank": rank}

    run(scenario)


def test_sglang_has_both_meet_in_a_room() -> None:
    async def scenario(found: World) -> None:
        await pair(found, "SGLang")
        got = await found.client.post(LONG, "/v1/completions")
        assert got.document["engine"].startswith("d")
        [first], [second] = by_role(found, "p"), by_role(found, "d")
        assert first.document == second.document
        assert first.document["bootstrap_host"] == "127.0.0.1"
        assert first.document["bootstrap_port"] == 8998
        other = (await found.client.post(LONG | {"user": "v"}, "/v1/completions")).status
        rooms = {seen.document["bootstrap_room"] for seen in by_role(found, "d")}
        assert (other, len(rooms)) == (200, 2)

    run(scenario)


@pytest.mark.parametrize("kind", ["vLLM", "SGLang"])
@pytest.mark.parametrize("role", ["p", "d"])
def test_engine_of_a_pair_that_fails_is_left_for_another_one(kind: str, role: str) -> None:
    async def scenario(found: World) -> None:
        await pair(found, kind)
        for name in ("1", "2"):
            found.engines[f"{role}-{name}"].deeds.append(Deed.CLOSE)
        found.engines[f"{role}-2"].deeds.clear()
        for number in range(4):
            got = await found.client.post(LONG | {"user": f"u-{number}"}, "/v1/completions")
            assert (got.status, got.document["echo"]) == (200, f"u-{number}")

    run(scenario)


def test_first_engine_that_refuses_the_request_is_believed() -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        for name in ("p-1", "p-2"):
            found.engines[name].deeds.append(Deed.BAD_REQUEST)
        got = await found.client.post(LONG, "/v1/completions")
        assert (got.status, got.document["error"]["message"]) == (400, "own words")
        assert not by_role(found, "d")

    run(scenario)


def test_other_paths_are_answered_by_one_engine() -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        assert (await found.client.post(PROMPT, "/v1/embeddings")).status == 200
        assert sum(found.seen().values()) == 1
        given = STREAM | {"kv_transfer_params": {"own": 1}}
        assert (await found.client.post(given)).status == 200
        assert sum(found.seen().values()) == 2

    run(scenario)


@pytest.mark.parametrize("answer", [b'{"kv_transfer_params":null}', b"{}", b"no json"])
def test_second_engine_computes_itself_where_the_first_hands_nothing_over(answer: bytes) -> None:
    async def scenario(found: World) -> None:
        await pair(found)
        for name in ("p-1", "p-2"):
            found.engines[name].answers_with = lambda seen: answer
        assert (await found.client.post(LONG, "/v1/completions")).status == 200
        assert by_role(found, "d")[0].document == LONG

    run(scenario)


def test_first_engine_that_breaks_off_late_costs_no_stream_of_the_second() -> None:
    async def scenario(found: World) -> None:
        await pair(found, "SGLang")
        for name in ("p-1", "p-2"):
            found.engines[name].deeds.append(Deed.LATE_BREAK)
        for name in ("d-1", "d-2"):
            found.engines[name].deeds.append(Deed.SLOW_STREAM)
        got = await found.client.post(LONG | {"stream": True}, "/v1/completions")
        assert (got.status, got.is_whole, got.events[-1]) == (200, True, "[DONE]")
        assert not found.gateway.endpoint.failures
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert recent.outcomes[-1].event.value == "completed"

    run(scenario)
