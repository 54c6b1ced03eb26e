"""How a publisher is asked for its stream: the calls that its kind may understand, in order."""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from bridge.grpc.openengine import OpenEngineEvents
from bridge.grpc.smg import SmgEvents
from bridge.grpc.streamed import StreamedMessage
from schemas.registration import SGLANG, TENSORRT_LLM, TOKENSPEED, VLLM, PublisherKind


class StreamProtocol(Protocol):
    """What is sent and comes; without state."""

    name: str

    def request(self, first: int | None, rank: int) -> bytes:
        """The request for the batches of a rank from this number on; None: for all that there is.

        A server that counts over all ranks, or has kept nothing, may send others.
        """
        ...

    def read(self, message: bytes, rank: int) -> StreamedMessage:
        """One message of the answer; see there. No bytes raise an error."""
        ...


class StreamMethod(NamedTuple):
    """One call.

    Attributes:
        path: of the method, as it is on the wire.
    """

    path: str
    protocol: StreamProtocol


_SMG: Final = {
    VLLM: "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
    SGLANG: "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents",
    TOKENSPEED: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents",
    TENSORRT_LLM: "/trtllm.TrtllmService/SubscribeKvEvents",
}

_SERVICES: Final = ("Control", "OpenEngine")
"""Of releases since OpenEngine's service was divided, and of those before."""

_OPEN_ENGINE: Final = tuple(
    StreamMethod(f"/openengine.v1.{service}/SubscribeKvEvents", OpenEngineEvents())
    for service in _SERVICES
)

SOURCES_PATHS: Final = tuple(f"/openengine.v1.{one}/GetKvEventSources" for one in _SERVICES)
"""Where a server says at which ZMQ address its engine publishes, which streams nothing itself."""

METHODS: Final[Mapping[PublisherKind, tuple[StreamMethod, ...]]] = {
    kind: (StreamMethod(path, SmgEvents()), *_OPEN_ENGINE) for kind, path in _SMG.items()
}
"""By kind: the first one that the server has."""
