"""The operations that are guarded: what each block, each query and each decision goes through, in
one process.

No network and no disk: what counts is the CPU of the calling thread, which a busy machine moves
least. All inputs are seeded.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from bridge.publisher.sequencer import Intake, Sequencer
from bridge.sockets.raw_message import RawMessage
from lab.benchmarks.embedded.http_client import prompts_of
from lab.benchmarks.embedded.publishers_process import phases_of
from lab.benchmarks.guard.operation import Operation
from lab.benchmarks.guard.routing import CANDIDATES, routing_operations
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.traffic.event_load import LoadPlan, encode_load
from schemas.identities import Offset
from schemas.records import encode_record
from schemas.registration import VLLM, Registration
from streams.kernel import array_packer, open_kernel
from streams.kernel.interface import BodyForm, Kernel
from streams.table.fold import Fold

MODEL: Final = "guard"
INSTANCES: Final = 8
WINDOW_MESSAGES: Final = 64
BLOCKS: Final = {64: 65_536, 1: 16_384}
"""By blocks in an event."""

REPEATS: Final = {1024: 400, 8192: 200, 32_768: 50}
"""By tokens in a query."""

ROUTED_TOKENS: Final = 1024
"""Of a prompt that is routed."""

URL_QUERY: Final = f"model={MODEL}&block_size={BLOCK_SIZE}".encode()


def operations() -> list[Operation]:
    """All of them, in the order in which they are shown."""
    found: list[Operation] = []
    for per_event, blocks in BLOCKS.items():
        plan = LoadPlan(
            blocks=blocks,
            blocks_per_event=per_event,
            block_size=BLOCK_SIZE,
            pattern="removed",
            seed=SEED,
        )
        stored, removed = (load.payloads for load in phases_of(plan, encode_load(plan)))
        shape = f"{per_event}-block events"
        found += _write_path(f"stored, {shape}", blocks, [], stored)
        found += _write_path(f"removed, {shape}", blocks, stored, removed)
    return [*found, *_queries()]


def _registration(instance: int = 0) -> Registration:
    """Of a publisher that nobody connects to."""
    return Registration(
        endpoint=f"tcp://127.0.0.1:{instance + 1}",
        kind=VLLM,
        model_name=MODEL,
        instance_id=f"instance-{instance}",
        block_size=BLOCK_SIZE,
    )


# The write path


def _write_path(
    shape: str, blocks: int, before: list[bytes], payloads: list[bytes]
) -> Iterator[Operation]:
    """A block from its message to the changes that become rows."""
    earlier = _records(_intake(), before, 0)

    def decode() -> Callable[[], object]:
        made = _intake()
        _records(made, before, 0)
        return lambda: _records(made, payloads, len(before))

    records = decode()()
    assert isinstance(records, list)

    def fold() -> Callable[[], object]:
        made = Fold(open_kernel(SEED, name="rust"))
        _fold(made, earlier, 0)
        made.take_changes()

        def work() -> None:
            _fold(made, records, len(earlier))
            made.take_changes()

        return work

    yield Operation(f"{shape}: decode and pack", blocks, decode)
    yield Operation(f"{shape}: fold", blocks, fold)


def _intake(instance: int = 0) -> Intake:
    registration = _registration(instance)
    made = Sequencer(registration, packer=array_packer())
    return Intake({registration.publisher: made}.get)


def _records(
    intake: Intake, payloads: Sequence[bytes], first: int, instance: int = 0
) -> list[bytes]:
    publisher = _registration(instance).publisher
    encoded: list[bytes] = []
    for start in range(0, len(payloads), WINDOW_MESSAGES):
        window = [
            RawMessage(publisher, [b"", (first + at).to_bytes(8, "big"), payloads[at]], 0.0)
            for at in range(start, min(start + WINDOW_MESSAGES, len(payloads)))
        ]
        encoded += map(encode_record, intake.process(window, 1.7e9))
    return encoded


def _fold(fold: Fold, records: Sequence[bytes], first: int) -> None:
    for offset, record in enumerate(records, first):
        skipped = fold.apply(Offset(offset), record)
        assert skipped is None, skipped


# Queries


def _queries() -> Iterator[Operation]:
    tokens = max(REPEATS)
    plan = LoadPlan(
        blocks=tokens // BLOCK_SIZE,
        blocks_per_event=64,
        block_size=BLOCK_SIZE,
        chain_events=tokens // BLOCK_SIZE // 64,
        seed=SEED,
    )
    (prompt,) = prompts_of(plan)
    kernel = _holding(plan)
    for count, times in REPEATS.items():
        asked = prompt[:count]
        packed = array("i", asked).tobytes()
        fields: dict[str, object] = {"model": MODEL, "block_size": BLOCK_SIZE}
        bodies = {
            BodyForm.JSON: msgspec.json.encode({**fields, "token_ids": asked}),
            BodyForm.MSGPACK: msgspec.msgpack.encode({**fields, "token_ids": packed}),
            BodyForm.OCTETS: packed,
        }
        for form, body in bodies.items():
            url_query = URL_QUERY if form is BodyForm.OCTETS else b""
            ask = _asking(kernel, body, form, url_query, times)
            name = f"query, {form.name.lower()}, {count // 1024}K tokens"
            yield Operation(name, times, partial(_always, ask))
    engines = [_registration(instance) for instance in range(max(CANDIDATES))]
    yield from routing_operations(kernel, engines, prompt[:ROUTED_TOKENS])


def _always(work: Callable[[], object]) -> Callable[[], object]:
    return work


def _asking(
    kernel: Kernel, body: bytes, form: BodyForm, url_query: bytes, times: int
) -> Callable[[], object]:
    def ask() -> None:
        for _ in range(times):
            kernel.answer(body, form, False, url_query)

    answer = kernel.answer(body, form, False, url_query)
    assert answer is not None
    assert answer.hit_tokens == answer.tokens, "the prompt is held whole"
    return ask


def _holding(plan: LoadPlan) -> Kernel:
    """Of which each instance holds the whole plan."""
    fold = Fold(open_kernel(SEED, name="rust"))
    payloads = encode_load(plan).payloads
    for instance in range(INSTANCES):
        records = _records(_intake(instance), payloads, 0, instance)
        _fold(fold, records, instance * len(records))
    return fold.kernel
