"""In-memory stand-ins for what the services put behind the packages' protocols."""

import asyncio
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import msgspec
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from bridge.wire import KINDS
from query_api.gaps import LedgerView
from query_api.ports import Health, Lag, Positions, SegmentView, ServiceView
from query_api.segments import segment_views
from schemas.answer_states import AnswerState, Standing, Verdict
from schemas.conditions import Condition, Level, Part
from schemas.errors import EndpointError, NotRegisteredError, RegistrationConflictError
from schemas.events import BlockEvent, StoredBlocks, encode_events
from schemas.identities import Medium, Offset, PrefixScope, PublisherKey
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import Position, PublisherState
from schemas.registration import PublisherKind, Registration, Unregistration, replaced_by
from streams.kernel.interface import Kernel, PublisherId
from streams.kernel.reference import ReferenceKernel
from streams.table.fold import Fold
from streams.table.ledger import Ledger
from streams.table.rows.format import RowWrite
from streams.table.rows.writer import RowWriter

SEED = 1337


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Tokens as u32 LE."""
    return _little_endian(array("I", tokens))


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """Hashes as u64 LE."""
    return _little_endian(array("Q", hashes))


def _little_endian(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def registration(
    instance_id: str = "a",
    *,
    dp_rank: int = 0,
    model_name: str = "m",
    tenant_id: str = "default",
    lora_name: str = "",
    additional_salt: str = "",
    block_size: int = 4,
    endpoint: str = "",
    http_endpoint: str = "",
) -> Registration:
    """A registration that differs from the others in what the test says."""
    return Registration(
        endpoint=endpoint or f"tcp://{instance_id}-{tenant_id}:{5557 + dp_rank}",
        kind=PublisherKind("vLLM"),
        model_name=model_name,
        instance_id=instance_id,
        block_size=block_size,
        dp_rank=dp_rank,
        tenant_id=tenant_id,
        lora_name=lora_name,
        additional_salt=additional_salt,
        http_endpoint=http_endpoint,
    )


class FakeTable:
    """A View and a PublisherRegistry over one kernel; what a test sets is a plain field."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kinds = KINDS
        self._kernel: Kernel = ReferenceKernel(SEED) if kernel is None else kernel
        self._metrics = CollectorRegistry()
        self.ready = True
        self.role = "embedded"
        self.problem = ""
        self.at: Positions = (Position(0, 1234),)
        self.lag: Lag | None = None
        self.answer_state = AnswerState.EXACT
        self.standings: dict[str, Standing] = {}
        self.states: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, Registration] = {}
        self.known: dict[PublisherKey, Ledger] = {}
        self.segments: dict[SegmentKey, SegmentState] = {}
        self.now = 1000.0
        self.failure: Exception | None = None
        self.connected = True
        self._sequence = 0

    @property
    def kernel(self) -> Kernel:
        """See `View`."""
        return self._kernel

    @property
    def metrics(self) -> CollectorRegistry:
        """See `View`."""
        return self._metrics

    def health(self) -> Health:
        """See `View`."""
        level = Level.DEGRADED if self.ready else Level.UNAVAILABLE
        wrong = Condition(Part.RECOVERY, "recovering", self.problem, 1000.0, level)
        conditions = (wrong,) if self.problem or not self.ready else ()
        return Health(self.role, conditions, self._kernel.name, self.at, self.lag)

    def positions(self) -> Positions:
        """See `View`."""
        return self.at

    def state(self, scope: PrefixScope) -> AnswerState:
        """See `View`."""
        return self.answer_state

    def verdict(self, scope: PrefixScope) -> Verdict:
        """See `View`."""
        return Verdict(self.answer_state)

    def notify(self, changed: Callable[[], None]) -> None:
        """See `View`."""
        self.changed = changed

    def standing(self, publisher: PublisherKey) -> Standing:
        """See `View`."""
        return self.standings.get(
            publisher.stream.instance_id, Standing(self.answer_state, "", 0.0)
        )

    def instance_standings(self, scope: PrefixScope) -> dict[str, Standing]:
        """See `View`."""
        names = {publisher.stream.instance_id for publisher in self.registrations}
        fallback = Standing(self.answer_state, "", 0.0)
        return {name: self.standings.get(name, fallback) for name in names}

    def services(self) -> list[ServiceView]:
        """See `View`."""
        known = sorted(self.registrations.values(), key=lambda known: known.service_key)
        return [self._service(known) for known in known]

    def registered(self) -> list[Registration]:
        """See `View`."""
        return list(self.registrations.values())

    def ledgers(self) -> list[LedgerView]:
        """See `View`."""
        return [LedgerView(one, ledger, self.states.get(one)) for one, ledger in self.known.items()]

    def memory(self) -> list[SegmentView]:
        """See `View`."""
        return segment_views(self.segments, self.registrations.values(), now=self.now)

    def _service(self, known: Registration) -> ServiceView:
        state = self.states.get(known.publisher, PublisherState())
        return ServiceView(
            known, state, self.connected, self.standing(known.publisher), ("silent", 8.0)
        )

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """See `PublisherRegistry`."""
        if self.failure is not None:
            raise self.failure
        for one in replaced_by(registration, self.registrations) if replace else ():
            del self.registrations[one.publisher]
        if registration.has_events:
            self.add(registration)
        else:
            self.registrations[registration.publisher] = registration

    def add(self, registration: Registration) -> PublisherId:
        """Registers at once; what `register` does."""
        if "://" not in registration.endpoint:
            raise EndpointError(f"Expected a ZMQ address, got: {registration.endpoint}")
        known = self.registrations.get(registration.publisher)
        if known is not None and known != registration:
            key = registration.service_key
            raise RegistrationConflictError(f"conflicting registration for service key: {key}")
        for other in self.registrations.values():
            if other.endpoint == registration.endpoint and other != registration:
                endpoint = registration.endpoint
                raise RegistrationConflictError(
                    f"conflicting active registration for endpoint: {endpoint}"
                )
        self.registrations[registration.publisher] = registration
        publisher = self._kernel.open_publisher(registration.stream, registration.dp_rank)
        self._kernel.register(publisher, registration.lora_name, True)
        return publisher

    async def unregister(self, target: Unregistration) -> list[Registration]:
        """See `PublisherRegistry`."""
        if self.failure is not None:
            raise self.failure
        found = [
            known
            for known in self.registrations.values()
            if (known.tenant_id, known.instance_id, known.dp_rank)
            == (target.tenant_id, target.instance_id, target.dp_rank)
            and target.model_name in (None, known.model_name)
            and target.block_size in (None, known.block_size)
        ]
        if not found:
            raise NotRegisteredError(target.service_key)
        for known in found:
            del self.registrations[known.publisher]
            publisher = self._kernel.open_publisher(known.stream, known.dp_rank)
            self._kernel.unregister(publisher)
        return found

    def apply(self, publisher: PublisherId, *events: BlockEvent) -> None:
        """Folds events of a registered publisher."""
        self._kernel.apply(publisher, encode_events(list(events)), -1)

    def store(
        self,
        publisher: PublisherId,
        tokens: Iterable[int],
        *,
        hashes: Iterable[int],
        parent: int | None = None,
        block_size: int = 4,
        medium: Medium = Medium.GPU,
        shared: bool = False,
        lora_name: str = "",
        extra_keys: tuple[bytes, ...] = (),
    ) -> None:
        """Stores blocks, as an engine's event would."""
        self._sequence += 1
        event = StoredBlocks(
            sequence=self._sequence,
            hashes=pack_hashes(hashes),
            tokens=pack_tokens(tokens),
            parent=parent,
            block_size=block_size,
            medium=medium,
            shared=shared,
            lora_name=lora_name,
            extra_keys=extra_keys,
        )
        self.apply(publisher, event)


class PoisonedKernel:
    """A kernel that fails, as nobody foresaw, on events with the word `poison` in them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @classmethod
    def around(cls, kernel: Kernel) -> Kernel:
        """The kernel with that fault, to be used as any other."""
        return cast(Kernel, cls(kernel))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def apply(self, publisher: PublisherId, events: bytes, after: int) -> Any:
        """See `Kernel`."""
        if b"poison" in events:
            raise RuntimeError("for a test")
        return self._kernel.apply(publisher, events, after)


class FlushingWorker:
    """Folds records as a stream worker does, and gives the rows of each flush."""

    def __init__(self, fold: Fold, *, table: bytes = b"") -> None:
        self.fold = fold
        self._writer = RowWriter(generation_min_bytes=1 << 20, table=table)

    def flush(self, *records: bytes) -> list[RowWrite]:
        """The rows of one flush, after the records were folded."""
        for record in records:
            assert self.fold.apply(Offset(self.fold.offset + 1), record) is None
        flush = self._writer.flush(self.fold, self.fold.take_changes())
        written = flush.rest()
        self._writer.note(flush)
        return written


class Reply(NamedTuple):
    """One HTTP answer; header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def document(self) -> Any:
        """The body, decoded as its Content-Type says."""
        if self.headers["content-type"] == "application/msgpack":
            return msgspec.msgpack.decode(self.body)
        return msgspec.json.decode(self.body)


class AsgiClient:
    """Calls an ASGI app without a network, one request at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def get(self, path: str, **headers: str) -> Reply:
        """A GET; header names are written with underscores."""
        return self._call("GET", path, [], headers)

    def request(self, method: str, path: str) -> Reply:
        """A request of another method, without a body."""
        return self._call(method, path, [], {})

    def post(self, path: str, body: bytes | list[bytes], **headers: str) -> Reply:
        """A POST of a body, or of its chunks."""
        return self._call("POST", path, [body] if isinstance(body, bytes) else body, headers)

    def post_json(self, path: str, document: object, **headers: str) -> Reply:
        """A POST of a document in JSON."""
        headers = {"content_type": "application/json", **headers}
        return self.post(path, msgspec.json.encode(document), **headers)

    def post_msgpack(self, path: str, document: object, **headers: str) -> Reply:
        """A POST of a document in msgpack."""
        headers = {"content_type": "application/msgpack", **headers}
        return self.post(path, msgspec.msgpack.encode(document), **headers)

    def abandon(self, path: str, body: bytes) -> list[Message]:
        """A POST whose client leaves before the end; what the app still sent."""
        return asyncio.run(self._exchange("POST", path, [body], {}, complete=False))

    def _call(self, method: str, path: str, chunks: list[bytes], headers: dict[str, str]) -> Reply:
        sent = asyncio.run(self._exchange(method, path, chunks, headers, complete=True))
        start = sent[0]
        body = b"".join(message.get("body", b"") for message in sent[1:])
        names = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], names, body)

    async def _exchange(
        self,
        method: str,
        path: str,
        chunks: list[bytes],
        headers: dict[str, str],
        *,
        complete: bool,
    ) -> list[Message]:
        incoming = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks or [b""]
        ]
        if complete:
            incoming[-1]["more_body"] = False
        sent: list[Message] = []

        async def receive() -> Message:
            return incoming.pop(0) if incoming else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        path, _, query_string = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query_string.encode(),
            "root_path": "",
            "headers": [
                (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 13333),
        }
        await self._app(scope, receive, send)
        return sent
