"""A simulated engine that speaks gRPC as SMG's servicer of vLLM does, by the same queue of prompts
as `lab.engines.openai_engine` with `--costs`.

Run it with the Python of the peers, which has SMG's messages: `python -m
lab.benchmarks.gateways.smg_engine JOB`. It prints its port when it serves, and a line of what
became of its prompts when its standard input ends.
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
import msgspec
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from lab.engines import words
from lab.engines.cache import CacheSizes
from lab.engines.prompt_queue import PromptQueue
from lab.engines.wire import BlockRemoved, BlockStored, EngineEvent
from routing.costs import Costs

BATCHES_KEPT: Final = 10_000
MODEL_TOKENS_MAX: Final = 1 << 17
_SIGNED: Final = 1 << 63


class SmgEngineJob(msgspec.Struct, frozen=True):
    """What it is: `folder` has the model's files."""

    model: str
    folder: str
    sizes: CacheSizes
    costs: Costs


class SmgEngine(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """The calls that SMG's router makes of an engine that generates text."""

    def __init__(self, job: SmgEngineJob) -> None:
        self.queue = PromptQueue(job.sizes, job.costs)
        self._job = job
        self._batches: deque[common_pb2.KvEventBatch] = deque(maxlen=BATCHES_KEPT)
        self._sequence = 0
        self._events = 0
        self._subscribers: list[asyncio.Queue[common_pb2.KvEventBatch]] = []

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Computes a prompt; the whole answer comes at its first token."""
        prompt = list(request.tokenized.input_ids)
        answer = words.answer_of(prompt, request.sampling_params.max_tokens or 1)
        computed = await self.queue.compute(prompt, answer)
        if computed.events:
            self._publish(computed.events)
        if request.stream:
            chunk = vllm_engine_pb2.GenerateStreamChunk(
                token_ids=answer,
                prompt_tokens=len(prompt),
                completion_tokens=len(answer),
                cached_tokens=computed.cached_tokens,
            )
            yield vllm_engine_pb2.GenerateResponse(chunk=chunk)
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=answer,
            finish_reason="length",
            prompt_tokens=len(prompt),
            completion_tokens=len(answer),
            cached_tokens=computed.cached_tokens,
        )
        yield vllm_engine_pb2.GenerateResponse(complete=complete)

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """It is well."""
        return vllm_engine_pb2.HealthCheckResponse(healthy=True, message="Health")

    async def Abort(self, request: Any, context: Any) -> Any:
        """Nothing: prompts are computed to their end."""
        return vllm_engine_pb2.AbortResponse()

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """The model of words."""
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=self._job.folder,
            is_generation=True,
            max_context_length=MODEL_TOKENS_MAX,
            vocab_size=words.VOCABULARY + len(words.ROLES) + 1,
            served_model_name=self._job.model,
            tokenizer_path=self._job.folder,
            model_type="llama",
            architectures=["LlamaForCausalLM"],
            max_req_input_len=MODEL_TOKENS_MAX,
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """As vLLM says it."""
        return vllm_engine_pb2.GetServerInfoResponse(
            server_type="vllm-grpc", data_parallel_size=1, uptime_seconds=time.monotonic()
        )

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """What waits."""
        running = min(self.queue.waiting, 1)
        load = vllm_engine_pb2.SchedulerLoad(
            num_running_reqs=running,
            num_waiting_reqs=self.queue.waiting - running,
            num_total_reqs=self.queue.waiting,
        )
        return vllm_engine_pb2.GetLoadsResponse(version="0.32.0", dp_rank_count=1, loads=[load])

    async def SubscribeKvEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """All batches from a number on, and then each as it comes."""
        coming: asyncio.Queue[common_pb2.KvEventBatch] = asyncio.Queue()
        past = [
            one for one in self._batches if one.sequence_number >= request.start_sequence_number
        ]
        self._subscribers.append(coming)
        try:
            await context.send_initial_metadata(())
            for one in past:
                yield one
            while True:
                yield await coming.get()
        finally:
            self._subscribers.remove(coming)

    def _publish(self, events: Sequence[EngineEvent]) -> None:
        batch = common_pb2.KvEventBatch(
            sequence_number=self._sequence, timestamp=time.time(), dp_rank=0
        )
        self._sequence += 1
        for event in events:
            self._events += 1
            batch.events.append(_event(event, self._events))
        self._batches.append(batch)
        for one in self._subscribers:
            one.put_nowait(batch)


def _event(event: EngineEvent, number: int) -> Any:
    if isinstance(event, BlockStored):
        size = event.block_size
        stored = common_pb2.KvBlocksStored(
            blocks=[
                common_pb2.KvBlock(
                    block_hash=_signed(block),
                    token_ids=event.token_ids[place * size : (place + 1) * size],
                    block_size=size,
                )
                for place, block in enumerate(event.block_hashes)
            ]
        )
        if event.parent_block_hash is not None:
            stored.parent_block_hash = _signed(event.parent_block_hash)
        return common_pb2.KvCacheEvent(event_id=number, stored=stored)
    if isinstance(event, BlockRemoved):
        removed = common_pb2.KvBlocksRemoved(block_hashes=map(_signed, event.block_hashes))
        return common_pb2.KvCacheEvent(event_id=number, removed=removed)
    return common_pb2.KvCacheEvent(event_id=number, cleared=common_pb2.KvCacheCleared())


def _signed(block: int | bytes) -> int:
    assert isinstance(block, int), "simulated engines have numbers"
    return block - 2 * _SIGNED if block >= _SIGNED else block


async def _serve(job: SmgEngineJob) -> None:
    engine = SmgEngine(job)
    server = grpc.aio.server()
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps([one[:3] for one in engine.queue.computed]), flush=True)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(sys.argv[1], type=SmgEngineJob)))
