"""How a publisher is asked for its stream: the calls that its kind may understand, in order."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from bridge.grpc.lmcache import LmcacheCalls
from bridge.grpc.openengine import OpenEngineEvents
from bridge.grpc.smg import SmgEvents
from bridge.grpc.streamed import StreamedMessage, StreamPing
from schemas.registration import (
    LMCACHE_TOPIC,
    SGLANG,
    TENSORRT_LLM,
    TOKENSPEED,
    VLLM,
    PublisherKind,
    Registration,
)


class StreamCall(Protocol):
    """One call: what is sent, and what each message says that comes."""

    @property
    def request(self) -> bytes:
        """What is sent."""
        ...

    @property
    def ping(self) -> StreamPing | None:
        """What its server wants to be asked while it goes on; None for nothing."""
        ...

    def read(self, message: bytes) -> Iterable[StreamedMessage]:
        """What it says, in order. No bytes raise an error."""
        ...


class StreamCalls(Protocol):
    """The calls for one publisher, one after the other."""

    def begin(self, first: int | None, *, only_whole: bool = False) -> StreamCall:
        """The call for the batches from this number on; None: for all that there is.

        Args:
            only_whole: whether what comes is of no use where it is not all.
        """
        ...


class StreamProtocol(Protocol):
    """What is sent and comes where a message is a batch; without state."""

    name: str

    def request(self, first: int | None, rank: int) -> bytes:
        """The request for the batches of a rank from this number on; None: for all that there is.

        A server that counts over all ranks, or has kept nothing, may send others.
        """
        ...

    def read(self, message: bytes, rank: int) -> StreamedMessage:
        """One message of the answer; see there. No bytes raise an error."""
        ...


class _BatchCall:
    """See `StreamCall`."""

    ping = None

    def __init__(self, protocol: StreamProtocol, first: int | None, rank: int) -> None:
        self.request = protocol.request(first, rank)
        self._protocol, self._rank = protocol, rank

    def read(self, message: bytes) -> Iterable[StreamedMessage]:
        """See `StreamCall`."""
        return (self._protocol.read(message, self._rank),)


class BatchCalls:
    """See `StreamCalls`: each message is a batch."""

    def __init__(self, protocol: StreamProtocol, registration: Registration) -> None:
        self._protocol, self._rank = protocol, registration.dp_rank

    def begin(self, first: int | None, *, only_whole: bool = False) -> StreamCall:
        """See `StreamCalls`: the first batch tells whether it is all."""
        return _BatchCall(self._protocol, first, self._rank)


class StreamMethod(NamedTuple):
    """One call.

    Attributes:
        path: of the method, as it is on the wire.
        follow: makes the calls for a publisher.
    """

    path: str
    follow: Callable[[Registration], StreamCalls]


_SMG: Final = {
    VLLM: "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
    SGLANG: "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents",
    TOKENSPEED: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents",
    TENSORRT_LLM: "/trtllm.TrtllmService/SubscribeKvEvents",
}

_SERVICES: Final = ("Control", "OpenEngine")
"""Of releases since OpenEngine's service was divided, and of those before."""

_OPEN_ENGINE: Final = tuple(
    StreamMethod(
        f"/openengine.v1.{service}/SubscribeKvEvents", partial(BatchCalls, OpenEngineEvents())
    )
    for service in _SERVICES
)

SOURCES_PATHS: Final = tuple(f"/openengine.v1.{one}/GetKvEventSources" for one in _SERVICES)
"""Where a server says at which ZMQ address its engine publishes, which streams nothing itself."""

METHODS: Final[Mapping[PublisherKind, tuple[StreamMethod, ...]]] = {
    **{
        kind: (StreamMethod(path, partial(BatchCalls, SmgEvents())), *_OPEN_ENGINE)
        for kind, path in _SMG.items()
    },
    LMCACHE_TOPIC: (StreamMethod("/lmcache.mp.KVEventService/SubscribeKvEvents", LmcacheCalls),),
}
"""By kind: the first one that the server has."""
