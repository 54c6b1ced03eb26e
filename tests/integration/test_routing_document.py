"""The client that `docs/routing.md` shows, run as it stands there."""

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

import schemas
from lab.benchmarks.routing.world import MODEL, World
from routing.costs import Costs
from tests.processes import until

DOCUMENT = Path(schemas.__file__).parents[1] / "docs" / "routing.md"
COSTS = Costs(fixed_s=0.05, prefill_tokens_per_s=1e6, token_squared_s=0.0)
PROMPT = list(range(64))
CALLERS = 16


@contextmanager
def client_of(url: str) -> Iterator[Callable[..., Any]]:
    """`send` of the first block of Python, with the service's address and model in it."""
    block = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) < 20, "it is to be read at a glance"
    code = block[1].replace("http://127.0.0.1:13333", url).replace('"m"', f'"{MODEL}"')
    # A tenth of a second is for production; here the machine may be busy with other tests.
    defined: dict[str, Any] = {}
    exec(code.replace("timeout=0.1", "timeout=20"), defined)
    with defined["reprise"]:
        yield defined["send"]


def call(
    endpoint: str, dp_rank: int, client: Any = httpx, prompt: Sequence[int] = PROMPT
) -> tuple[float, dict[str, Any]]:
    """As an engine with an OpenAI interface answers."""
    assert dp_rank == 0
    answer = client.post(f"{endpoint}/generate", json={"token_ids": prompt}, timeout=20).json()
    details = {"cached_tokens": answer["cached_tokens"]}
    return answer["ttft_s"], {"prompt_tokens_details": details, "completion_tokens": 1}


def reported(url: str) -> int:
    rows = httpx.get(f"{url}/promises", timeout=20).json()["rows"]
    return sum(row["reported"] for row in rows)


def under_way(url: str) -> int:
    found: int = httpx.get(f"{url}/routing", timeout=20).json()["under_way"]
    return found


def test_the_client_of_the_document_works() -> None:
    with World([COSTS] * 2, named=True) as world:
        with client_of(world.url) as send:
            first = send(PROMPT, call, lambda: pytest.fail("Reprise was there"))
            again = send(PROMPT, call, lambda: pytest.fail("Reprise was there"))
        assert first[1]["prompt_tokens_details"]["cached_tokens"] == 0
        assert again[1]["prompt_tokens_details"]["cached_tokens"] == 48
        until(lambda: reported(world.url) == 2, what="both reports in the log")


def test_an_engine_or_a_service_that_is_gone_costs_no_request() -> None:
    with World([COSTS] * 2, named=True) as world, client_of(world.url) as send:
        tried = []

        def call_once(endpoint: str, dp_rank: int) -> tuple[float, dict[str, Any]]:
            tried.append(endpoint)
            if len(tried) == 1:
                raise httpx.ConnectError("it is gone")
            return 0.1, {"rank": dp_rank}

        assert send(PROMPT, call_once, lambda: ("elsewhere", 1)) == (0.1, {"rank": 1})
        assert tried[1:] == ["elsewhere"]
        until(lambda: under_way(world.url) == 0, what="that nothing is booked any more")
    with client_of("http://127.0.0.1:9") as send:  # nobody listens there
        found = send(PROMPT, lambda endpoint, rank: (endpoint, {"rank": rank}), lambda: ("b", 1))
    assert found == ("b", {"rank": 1})


def test_an_engine_that_is_killed_under_load_fails_no_request() -> None:
    """Of 400, of sixteen callers at once; those at the engine when it is killed are tried again
    elsewhere, and what comes later is soon not sent there any more.
    """
    with World([COSTS] * 4, named=True) as world, client_of(world.url) as send:
        victim, *others = world.engines
        elsewhere = cycle(f"http://{one.http_host}:{one.http_port}" for one in others)
        lost = f"http://{victim.http_host}:{victim.http_port}"
        refused = Counter[bool]()
        engines = httpx.Client(timeout=20)

        def ask(number: int) -> int:
            if number == 200:
                os.kill(victim.pid, signal.SIGKILL)
            prompt = [1_000 * number + token for token in range(64)]

            def call_counted(endpoint: str, dp_rank: int) -> tuple[float, dict[str, Any]]:
                try:
                    return call(endpoint, dp_rank, engines, prompt)
                except httpx.HTTPError:
                    refused[endpoint == lost] += 1
                    raise

            said: dict[str, Any]
            _, said = send(prompt, call_counted, lambda: (next(elsewhere), 0))
            return int(said["completion_tokens"])

        with engines, ThreadPoolExecutor(CALLERS) as callers:
            answered = list(callers.map(ask, range(400)))
        assert answered == [1] * 400
        assert refused[False] == 0
        assert 0 < refused[True] <= CALLERS + 8, "those under way, and trials"
        until(lambda: under_way(world.url) == 0, what="that nothing is booked any more")
