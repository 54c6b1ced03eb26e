"""A simulated engine that speaks OpenAI's API as vLLM does, on one thread, as fast as it can.

Run it as `python -m lab.engines.openai_engine PORT NAME`; it prints its port when it serves, and
ends with the process that started it.

    POST /v1/chat/completions, /v1/completions, any other   an answer, whole or as a stream
    POST /tokenize       the bytes of the prompt's text are its tokens
    POST /v1/chat/completions/render   the same, as vLLM answers
    GET  /v1/models, /version, /health, /metrics, /kv_event_sources   as vLLM answers
    GET  /computed       with `--costs`: what became of each prompt

With `--events` it has a block cache, publishes what it stores, and says what it found there. With
`--costs`, too, prompts take time, one after another; their tokens, and those of the answer, are
words (`lab.engines.words`).
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final, cast

import httptools
import msgspec

from lab.engines import words
from lab.engines.cache import CacheSizes, EngineCache
from lab.engines.openai import prompt_tokens
from lab.engines.prompt_queue import PromptQueue
from lab.engines.publisher import Publisher, PublisherOptions
from routing.costs import Costs

BLOCK_SIZE: Final = 16
GPU_BLOCKS: Final = 1 << 16
OUTPUT_TOKENS: Final = 8
PARENT_LOOK_S: Final = 1.0  # how often it is looked whether the parent is there
_BACKLOG: Final = 1024


class OpenAiEngine:
    """What all connections share.

    Args:
        name: of the engine.
        model: that it serves.
        has_events: whether it has a cache.
        first_token_s: until its first token.
        token_s: from one token to the next.
        gpu_blocks: of its cache.
        costs: of prompts; None: they take no time beside `first_token_s`.

    Attributes:
        queue: of prompts that take time; None where they take none.
    """

    def __init__(
        self,
        name: str,
        model: str,
        *,
        has_events: bool,
        first_token_s: float,
        token_s: float,
        gpu_blocks: int = GPU_BLOCKS,
        costs: Costs | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.first_token_s = first_token_s
        self.token_s = token_s
        self.started_at = time.time()
        self._publisher: Publisher | None = None
        if has_events:
            self._cache = EngineCache(CacheSizes(BLOCK_SIZE, gpu_blocks))
            self._publisher = Publisher(PublisherOptions())
        self.gpu_blocks = gpu_blocks
        self.queue = PromptQueue(CacheSizes(BLOCK_SIZE, gpu_blocks), costs) if costs else None

    def view(self, path: str) -> tuple[int, bytes]:
        """The answer to a GET."""
        path = path.partition("?")[0]
        match path:
            case "/health":
                return 200, b""
            case "/version":
                return 200, b'{"version":"0.33.0"}'
            case "/v1/models":
                listed = [{"id": self.model, "object": "model", "max_model_len": 1 << 17}]
                return 200, json.dumps({"object": "list", "data": listed}).encode()
            case "/metrics":
                labels = f'block_size="{BLOCK_SIZE}",enable_prefix_caching="True",engine="0"'
                return 200, (
                    f"process_start_time_seconds {self.started_at!r}\n"
                    f'vllm:cache_config_info{{{labels},num_gpu_blocks="{self.gpu_blocks}"}} 1.0\n'
                ).encode()
            case "/computed" if self.queue is not None:
                return 200, json.dumps([one[:3] for one in self.queue.computed]).encode()
            case "/kv_event_sources":
                return 200, json.dumps(self._sources()).encode()
        return 404, b"{}"

    def _sources(self) -> dict[str, Any]:
        if self._publisher is None:
            return {}
        return {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self._publisher.endpoint.replace("127.0.0.1", "*"),
                "replay_endpoint": self._publisher.replay_endpoint.replace("127.0.0.1", "*"),
                "topic": "",
            }
        }

    def tokens(self, request: dict[str, Any]) -> Sequence[int]:
        """Of a prompt."""
        if self.queue is not None and "messages" in request:
            return words.chat_tokens(request["messages"])
        if self.queue is not None and isinstance(request.get("prompt"), str):
            return words.word_tokens(request["prompt"])
        return prompt_tokens(request)

    async def answered(self, request: dict[str, Any], output: int) -> tuple[str, dict[str, Any]]:
        """Computes the prompt: the answer's text, and its usage."""
        tokens = self.tokens(request)
        if self.queue is None:
            return "w " * output, self._usage(tokens, output)
        answer = words.answer_of(tokens, output)
        computed = await self.queue.compute(tokens, answer)
        if self._publisher is not None and computed.events:
            self._publisher.publish(computed.events)
        return words.text_of(answer), _usage_of(len(tokens), output, computed.cached_tokens)

    def _usage(self, tokens: Sequence[int], output: int) -> dict[str, Any]:
        cached = 0
        if self._publisher is not None:
            run = self._cache.run(tokens)
            cached = run.cached_tokens
            if run.events:
                self._publisher.publish(run.events)
        return _usage_of(len(tokens), output, cached)


def _usage_of(prompt: int, output: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Connection(asyncio.Protocol):
    """One client; a request at a time."""

    def __init__(self, engine: OpenAiEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, body = self._url.decode(), b"".join(self._body)
        self._url, self._body = b"", []
        if self._parser.get_method() == b"GET":
            self._write(*self._engine.view(path))
        elif path == "/tokenize":
            tokens = list(self._engine.tokens(json.loads(body)))
            said = {"count": len(tokens), "max_model_len": 1 << 17, "tokens": tokens}
            self._write(200, json.dumps(said).encode())
        elif path == "/v1/chat/completions/render":
            rendered = list(self._engine.tokens(json.loads(body)))
            self._write(200, json.dumps({"token_ids": rendered}).encode())
        else:
            self._answering = asyncio.ensure_future(self._answer(json.loads(body)))

    def _write(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        assert self._transport is not None
        self._transport.write(head % (status, len(body)) + body)

    async def _answer(self, request: dict[str, Any]) -> None:
        engine = self._engine
        output = min(int(request.get("max_tokens") or OUTPUT_TOKENS), 4096)
        text, usage = await engine.answered(request, output)
        if engine.first_token_s:
            await asyncio.sleep(engine.first_token_s)
        if not request.get("stream"):
            if engine.token_s:
                await asyncio.sleep(engine.token_s * output)
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "length",
            }
            document: dict[str, Any] = {
                "id": "x",
                "engine": engine.name,
                "choices": [choice],
                "usage": usage,
            }
            document["user"] = request.get("user")
            self._write(200, json.dumps(document).encode())
            return
        assert self._transport is not None
        write = self._transport.write
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        write(head + b"transfer-encoding: chunked\r\n\r\n")
        part = {"index": 0, "delta": {"content": "w "}}
        event = {"id": "x", "engine": engine.name, "choices": [part]}
        piece = _chunk(json.dumps(event | {"user": request.get("user")}).encode())
        for _ in range(output):
            write(piece)
            await asyncio.sleep(engine.token_s)
        if (request.get("stream_options") or {}).get("include_usage"):
            write(_chunk(json.dumps({"id": "x", "choices": [], "usage": usage}).encode()))
        write(_chunk(b"[DONE]") + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data)


async def _serve(engine: OpenAiEngine, port: int) -> None:
    loop, parent = asyncio.get_running_loop(), os.getppid()
    server = await loop.create_server(
        lambda: _Connection(engine), "127.0.0.1", port, backlog=_BACKLOG
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        await asyncio.sleep(PARENT_LOOK_S)
        if os.getppid() != parent:
            return


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("--model", default="m")
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--first-token-s", type=float, default=0.0)
    parser.add_argument("--token-s", type=float, default=0.0)
    parser.add_argument("--gpu-blocks", type=int, default=GPU_BLOCKS)
    parser.add_argument("--costs", default="", help="routing.costs.Costs, as JSON")
    given = parser.parse_args()
    engine = OpenAiEngine(
        given.name,
        given.model,
        has_events=given.events,
        first_token_s=given.first_token_s,
        token_s=given.token_s,
        gpu_blocks=given.gpu_blocks,
        costs=msgspec.json.decode(given.costs, type=Costs) if given.costs else None,
    )
    asyncio.run(_serve(engine, given.port))


if __name__ == "__main__":
    main()
