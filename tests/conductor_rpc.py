"""A client of Conductor's RPC: the frames that the recorded client sends, over a socket."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from query_api.rpc.frames import ANSWER_HEAD_BYTES, function_of, request_frame
from query_api.rpc.messages import (
    ERROR_TEXT,
    QUERY,
    QUERY_ANSWER,
    REGISTER,
    REGISTER_ANSWER,
    SERVICES,
    UNREGISTER,
    UNREGISTER_ANSWER,
    VIEW,
    CacheHit,
    ContextKey,
    ErrorCode,
    GlobalView,
    HashProfile,
    QueryRequest,
    QueryResult,
    RegisterResult,
    ServiceConfig,
    UnregisterRequest,
    UnregisterResult,
)
from tests.fakes import pack_tokens

WAIT_S = 20.0
SERVICE = "mooncake::conductor::kvevent::ConductorService::"
PROFILE = HashProfile("vllm_v1", "sha256_cbor", "0", "", "low64_be")
VECTORS = Path(__file__).parent / "vectors" / "conductor" / "rpc-ylt-0.5.7.jsonl"


class Recorded(NamedTuple):
    """One call of the real client to a server of the real library: whole frames."""

    build: str
    method: str
    case: str
    request: bytes
    answer: bytes


def recorded() -> list[Recorded]:
    lines = map(json.loads, VECTORS.read_text().splitlines())
    return [
        Recorded(
            one["build"],
            one["method"],
            one["case"],
            bytes.fromhex(one["request"]),
            bytes.fromhex(one["answer"]),
        )
        for one in lines
    ]


class Answer(NamedTuple):
    """A frame of the server."""

    errc: int
    number: int
    body: bytes


class RpcFailedError(Exception):
    """The protocol's own error: its code and text."""


def service(instance_id: str, endpoint: str, **fields: Any) -> ServiceConfig:
    config = ServiceConfig(endpoint, "", 0, "m", "", "", instance_id, 16, 0, None, PROFILE)
    return config._replace(**fields)


class RpcClient:
    """As `ConductorClient`: one connection, one call at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_S)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def exchange(self, frame: bytes) -> Answer:
        self.socket.sendall(frame)
        return self.receive()

    def receive(self) -> Answer:
        head = self._exactly(ANSWER_HEAD_BYTES)
        assert head[:2] == b"\x15\x00", head
        number = int.from_bytes(head[4:8], "little")
        return Answer(head[2], number, self._exactly(int.from_bytes(head[8:12], "little")))

    def _exactly(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            piece = self.socket.recv(size - len(taken))
            if not piece:
                raise EOFError
            taken += piece
        return taken

    def call(self, method: str, body: bytes = b"") -> bytes:
        self._number += 1
        frame = request_frame(self._number, function_of(SERVICE + method), body)
        answer = self.exchange(frame)
        assert answer.number == self._number
        if answer.errc:
            raise RpcFailedError(answer.errc, ERROR_TEXT.unpack(answer.body))
        return answer.body

    def query(
        self,
        tokens: Sequence[int],
        *,
        tenant_id: str = "",
        model: str = "m",
        block_size: int = 16,
        salt: str | None = None,
        instance_id: str | None = None,
    ) -> dict[str, CacheHit] | ErrorCode:
        context = ContextKey(tenant_id, model, "", block_size)
        request = QueryRequest(context, pack_tokens(tokens), salt, instance_id)
        found = QUERY_ANSWER.unpack(self.call("Query", QUERY.pack(request)))
        return dict(found.instances) if isinstance(found, QueryResult) else ErrorCode(found)

    def register(self, config: ServiceConfig) -> RegisterResult | ErrorCode:
        answer = REGISTER_ANSWER.unpack(self.call("Register", REGISTER.pack(config)))
        return answer if isinstance(answer, RegisterResult) else ErrorCode(answer)

    def unregister(
        self, instance_id: str, tenant_id: str = "", dp_rank: int = 0
    ) -> UnregisterResult | ErrorCode:
        request = UnregisterRequest(instance_id, tenant_id, dp_rank)
        answer = UNREGISTER_ANSWER.unpack(self.call("Unregister", UNREGISTER.pack(request)))
        return answer if isinstance(answer, UnregisterResult) else ErrorCode(answer)

    def services(self) -> Sequence[ServiceConfig]:
        return SERVICES.unpack(self.call("ListServices"))

    def view(self) -> GlobalView:
        return VIEW.unpack(self.call("GetGlobalView"))
