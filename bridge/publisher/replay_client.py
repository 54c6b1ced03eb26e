"""Asks engines to replay batches that they have sent. Asyncio; one loop.

Protocol: a DEALER sends `["", first sequence]` to the engine's ROUTER, which answers with one
message for each buffered batch from there on, then with an end marker of sequence 2**64-1:

    release                       batch                           end
    vLLM to 0.25, SGLang to 0.5.21  ["", sequence, payload]         ["", ff*8, ""]
    from 0.26, 0.5.22               ["", topic, sequence, payload]  ["", "", ff*8, ""]
    ATOM                            ["", topic, sequence, payload]  ["", topic, ff*8, numbers]

Nothing in a reply can be trusted, its end included: see `bridge.publisher.repair`. Each request
has a socket of its own, so that a late reply to one is never taken for the reply to the next.

What is read takes memory, so there are few places for it, and an engine that does not answer may
not hold one for long: others would wait for it. So who has not answered the last time, or would
have to wait for a place, is first asked for batches that it cannot have. The answer is an end
marker alone, and many may be asked for that at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import zmq
import zmq.asyncio

from bridge.bounds import REPLAY_CHUNK_BYTES, REPLAYS_AT_ONCE_MAX
from bridge.publisher.repair import RepairResult, RepairStep, ReplayRepair
from bridge.publisher.sequencer import Sequencer
from bridge.sockets.curve import CURVE
from bridge.sockets.endpoints import check_endpoint, names_host
from bridge.sockets.lookup import LOOKUPS
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import EndpointError
from schemas.identities import PublisherKey
from schemas.limits import (
    BULK_BYTES,
    MESSAGE_BYTES_MAX,
    REPLAY_BARREN_S,
    REPLAY_IDLE_S,
    REPLAY_MESSAGES_MAX,
    REPLAY_TOTAL_S,
)
from schemas.records import SequencedRecord

REPLAY_CHUNK_BATCHES: Final = 64  # handed on at once
REPLAY_BREAK_LOOK_S: Final = 0.25  # how often it is looked whether a reply has broken off
PROBES_AT_ONCE_MAX: Final = 192  # engines that are asked whether they answer; three files each

assert REPLAY_BREAK_LOOK_S < REPLAY_IDLE_S, "a reply that has broken off is not taken for silence"

END_SEQUENCE: Final = b"\xff" * 8
_NO_SEQUENCE: Final = 2**63 - 1  # an engine has none from there on
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplaySocket:
    """Where a publisher's engine replays.

    Attributes:
        endpoint: its address; "" where there is none, or none is known yet.
        server_key: of the relay that stands there; "" where nothing is encrypted.
        is_silent: whether it did not answer the last time: it is asked first whether it is there.
    """

    endpoint: str
    server_key: str = ""
    is_silent: bool = False


Emit = Callable[[Sequence[SequencedRecord]], Awaitable[None]]
"""Takes records, in order; returns when there is room for more."""


class ReplyBrokenError(Exception):
    """libzmq has given up the engine's socket, and will not connect to it again: it does so where a
    message is larger than the bound, or is none. A connection that is lost is made again.
    """


class Replayer:
    """Repairs publishers; reads REPLAYS_AT_ONCE_MAX replies at a time.

    Args:
        idle_s: how long to wait for a reply.
        barren_s: how long to take replies that bring nothing new; and how long to wait for one of
            an engine that may still be at the reply before.
    """

    def __init__(
        self,
        *,
        idle_s: float = REPLAY_IDLE_S,
        barren_s: float = REPLAY_BARREN_S,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.requests = 0
        self.replayed_batches = 0
        self._idle_s = idle_s
        self._clock = clock
        self._barren_s = barren_s
        self._context = zmq.asyncio.Context()
        self._places = asyncio.Semaphore(REPLAYS_AT_ONCE_MAX)
        self._probes = asyncio.Semaphore(PROBES_AT_ONCE_MAX)
        self._decoder = ThreadPoolExecutor(1, "reprise-replay")

    async def repair(self, sequencer: Sequencer, engine: ReplaySocket, emit: Emit) -> RepairResult:
        """Emits what the engine still has after the publisher's cursor, up to what waits.

        The publisher must be held, and is afterwards: call `Sequencer.resume`.

        Args:
            engine: its replay socket.

        Returns:
            Whether it is known that the log has all that the engine had sent.
        """
        try:
            check_endpoint(engine.endpoint)
            return await self._repair(sequencer, engine, emit)
        except EndpointError as error:
            _logger.warning(
                "Cannot ask %s for a replay: %s. A gap stands for what is missing",
                sequencer.stream.publisher,
                error,
            )
            return RepairResult(Doubt.REPLAY_SILENT, heard_all=False)

    async def _repair(self, sequencer: Sequencer, engine: ReplaySocket, emit: Emit) -> RepairResult:
        repair, publisher = ReplayRepair(sequencer), sequencer.stream.publisher
        end_at = self._clock.monotonic() + REPLAY_TOTAL_S
        while repair.begin():
            self.requests += 1
            if await self._ask(repair, sequencer, engine, emit, end_at) is RepairStep.DONE:
                break
            if self._clock.monotonic() >= end_at:
                _logger.warning(
                    "The replay of %s did not end within %.0f s; what is missing is a gap",
                    publisher,
                    REPLAY_TOTAL_S,
                )
                break
        return repair.repaired

    async def _ask(
        self,
        repair: ReplayRepair,
        sequencer: Sequencer,
        engine: ReplaySocket,
        emit: Emit,
        end_at: float,
    ) -> RepairStep:
        """One request."""
        turn, publisher = repair.requests - 1, sequencer.stream.publisher
        if engine.is_silent or self._places.locked():
            async with self._probes:
                if not await self._answers(publisher, engine, turn=turn):
                    engine.is_silent = True
                    return repair.end(complete=False)
        async with self._places:
            repair.note_asked()
            answer = await self._read(repair, sequencer, engine, emit, end_at)
        engine.is_silent = repair.doubt is Doubt.REPLAY_SILENT
        return answer

    async def _answers(self, publisher: PublisherKey, engine: ReplaySocket, *, turn: int) -> bool:
        """Whether the engine answers anything at all."""
        replies = self._replies(publisher, engine, _NO_SEQUENCE, turn=turn)
        try:
            async for _ in replies:
                break
        except (TimeoutError, ReplyBrokenError):  # the latter: it is another kind of socket
            return False
        finally:
            await replies.aclose()
        return True

    async def _read(
        self,
        repair: ReplayRepair,
        sequencer: Sequencer,
        engine: ReplaySocket,
        emit: Emit,
        end_at: float,
    ) -> RepairStep:
        """A request for what is missing, and its replies. A socket that goes on sending what brings
        nothing is as good as silent.
        """
        publisher = sequencer.stream.publisher
        patience_s = self._barren_s if repair.is_sending else 0.0
        barren_at = self._clock.monotonic() + patience_s + self._barren_s
        replies = self._replies(
            publisher, engine, repair.start, turn=repair.requests - 1, patience_s=patience_s
        )
        try:
            async for chunk in replies:
                before = repair.replayed
                decoded = await self._decoded(sequencer, chunk)
                for records in repair.feed(decoded, self._clock.unix()):
                    if records:
                        await emit(records)
                self.replayed_batches += repair.replayed - before
                if repair.answer is not RepairStep.MORE:
                    return repair.answer
                now = self._clock.monotonic()
                if repair.replayed > before:
                    barren_at = now + self._barren_s
                if now >= min(barren_at, end_at):
                    return repair.end(complete=False)
        except TimeoutError:
            return repair.end(complete=False)
        except ReplyBrokenError:
            turn = repair.requests - 1
            if not repair.is_answered and not await self._answers(publisher, engine, turn=turn):
                return repair.end(complete=False)
            if records := repair.break_off(self._clock.unix()):
                await emit(records)
            return repair.answer
        finally:
            await replies.aclose()
        return repair.end(complete=True)

    async def _decoded(self, sequencer: Sequencer, chunk: list[RawMessage]) -> list[RawMessage]:
        """The messages, those of a large chunk with their batches: decoded here they would delay
        whatever else this loop does.
        """
        if sum(len(message.frames[-1]) for message in chunk) <= BULK_BYTES:
            return chunk
        decode = self._decoder.submit(lambda: list(map(sequencer.decoded, chunk)))
        return await asyncio.wrap_future(decode)

    async def _address(self, endpoint: str, turn: int) -> str:
        """What the endpoint's name stands for, the next address with each request.

        Raises:
            TimeoutError: it cannot be looked up now.
        """
        if not names_host(endpoint):
            return endpoint
        try:
            async with asyncio.timeout(self._idle_s):
                addresses = await LOOKUPS.addresses(endpoint)
        except OSError as error:
            _logger.debug("Cannot look up %s: %s", endpoint, error)
            raise TimeoutError from error
        return addresses[turn % len(addresses)]

    async def _replies(
        self,
        publisher: PublisherKey,
        engine: ReplaySocket,
        start: int,
        *,
        turn: int,
        patience_s: float = 0.0,
    ) -> AsyncGenerator[list[RawMessage], None]:
        """The replies to one request, in chunks, up to the end marker.

        Raises:
            TimeoutError: nothing came for `idle_s`; for `patience_s` where it is more, of the
                first one.
            ReplyBrokenError: no more will come.
            EndpointError: libzmq can make no connection to such an address.
        """
        socket = await self._socket()
        try:
            socket.linger = 0
            socket.maxmsgsize = MESSAGE_BYTES_MAX
            socket.rcvhwm = REPLAY_MESSAGES_MAX
            socket.ipv6 = True
            CURVE.secure(socket, engine.server_key)
            address = await self._address(engine.endpoint, turn)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                detail = f"Expected a ZMQ address, got `{engine.endpoint[:200]}`: {error.strerror}"
                raise EndpointError(detail) from error
            # `asyncio.wait_for` would swallow a cancellation that comes together with a message.
            async with asyncio.timeout(self._idle_s):
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
            ended = False
            wait_s = max(patience_s, self._idle_s)
            while not ended:
                async with asyncio.timeout(wait_s):
                    frames = await _next_reply(socket)
                wait_s = self._idle_s
                now = self._clock.unix()
                chunk, ended = await _read_ready(socket, publisher, frames, now)
                yield chunk  # an empty one, too: whoever reads looks at the time
        finally:
            socket.close(linger=0)

    async def _socket(self) -> zmq.asyncio.Socket:
        """A new one.

        Raises:
            TimeoutError: no file is left for it, which is as good as an engine that is silent.
        """
        try:
            return self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            _logger.warning(
                "Cannot open a socket to ask an engine for a replay: %s. Trying again",
                error.strerror,
            )
            await asyncio.sleep(self._idle_s)
            raise TimeoutError from error

    def close(self) -> None:
        """Ends; replays under way must have been cancelled."""
        self._decoder.shutdown(wait=False, cancel_futures=True)
        self._context.destroy(linger=0)


async def _next_reply(socket: zmq.asyncio.Socket) -> Sequence[bytes]:
    """The next message.

    Raises:
        ReplyBrokenError: none will come. Nothing tells when that happens; but a socket to which
            nobody belongs any more takes nothing, either.
    """
    while True:
        with contextlib.suppress(zmq.Again):
            return await socket.recv_multipart(zmq.NOBLOCK)
        if await socket.poll(round(1000 * REPLAY_BREAK_LOOK_S)):
            continue
        if not int(socket.getsockopt(zmq.EVENTS)) & (zmq.POLLIN | zmq.POLLOUT):
            raise ReplyBrokenError


async def _read_ready(
    socket: zmq.asyncio.Socket, publisher: PublisherKey, frames: Sequence[bytes], now: float
) -> tuple[list[RawMessage], bool]:
    """This reply, those that have arrived after it, and whether the end marker is reached."""
    chunk: list[RawMessage] = []
    size_bytes = 0
    while True:
        if len(frames) in (3, 4) and frames[0] == b"":
            sequence, payload = frames[-2:]
            if sequence == END_SEQUENCE:  # no batch has it; ATOM says there which ones it has
                return chunk, True
            topic = frames[1] if len(frames) == 4 else b""
            chunk.append(RawMessage(publisher, [topic, sequence, payload], now))
            size_bytes += len(payload)
        if len(chunk) >= REPLAY_CHUNK_BATCHES or size_bytes >= REPLAY_CHUNK_BYTES:
            return chunk, False
        try:
            frames = await socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return chunk, False
