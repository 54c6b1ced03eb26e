"""The server as a client of the library sees it: statuses, streams and bounds."""

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import grpc
import pytest

from query_api.grpc import calls
from query_api.grpc import server as server_module
from query_api.grpc.bounds import GRPC_MESSAGE_BYTES_MAX
from query_api.grpc.grpc_settings import GrpcSettings, ListenAddress
from query_api.grpc.refusals import GrpcRefusal
from query_api.grpc.server import GrpcServer
from query_api.grpc.traces import parent_of
from schemas.errors import ConfigurationError
from schemas.tracing import NO_SPAN, NO_TRACER, Tracer
from tests.processes import until
from tests.router_protos import PACKED, RADIX
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, UNSAMPLED, KeptSpans
from tests.unit.query_api.grpc.conftest import BLOCK_SIZE, NAMES, PROMPT, Index, content_hashes

MATCH_PREFIX = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"
SUBSCRIBE = "/radix_index.RadixIndex/Subscribe"
PUBLISH = "/radix_index.RadixIndex/Publish"
REQUEST = PACKED.MatchExternalKvPrefixRequest(hashes=[NAMES[0]]).SerializeToString()
WAIT_S = 20.0


class Client:
    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def ask(self, message: bytes = REQUEST, path: str = MATCH_PREFIX, **options: Any) -> bytes:
        call: Any = self.channel.unary_unary(path)
        reply: bytes = call(message, **({"timeout": WAIT_S} | options))
        return reply

    def refusal(self, message: bytes = REQUEST, path: str = MATCH_PREFIX) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(message, path)
        error: Any = caught.value
        return error.code().name, error.details()

    def close(self) -> None:
        self.channel.close()


class Stream:
    """A stream that a test writes and reads by itself."""

    def __init__(self, client: Client, path: str, **options: Any) -> None:
        self._out: queue.Queue[bytes | None] = queue.Queue()
        call: Any = client.channel.stream_stream(path)
        self.answers = call(iter(self._out.get, None), timeout=WAIT_S, **options)

    def send(self, message: bytes) -> None:
        self._out.put(message)

    def ask(self, message: bytes) -> bytes:
        self.send(message)
        answer: bytes = next(self.answers)
        return answer

    def close(self) -> None:
        self._out.put(None)


def query(query_id: int) -> bytes:
    keyspace = RADIX.Keyspace(model="m", block_size=BLOCK_SIZE, symbol_kind=1)
    message = RADIX.Query(query_id=query_id, keyspace=keyspace, content_hashes=content_hashes())
    encoded: bytes = message.SerializeToString()
    return encoded


@contextmanager
def serving(
    index: Index, tracer: Tracer = NO_TRACER, **settings: Any
) -> Iterator[tuple[GrpcServer, Client]]:
    server = GrpcServer(
        index.table, GrpcSettings(listen=ListenAddress(), **settings), tracer=tracer
    )
    server.start()
    try:
        with closing(Client(server.address)) as client:
            yield server, client
    finally:
        server.stop()


def test_a_query_is_answered(index: Index) -> None:
    index.add("a", 3, url="u")
    with serving(index) as (server, client):
        response = PACKED.MatchExternalKvPrefixResponse.FromString(client.ask())
        assert [match.worker_address for match in response.matches] == ["u"]
        assert server.counts.calls == {("MatchExternalKvPrefix", "OK"): 1}
        assert server.counts.seconds["MatchExternalKvPrefix"].buckets()[-1][1] == 1


def test_until_it_is_ready_an_index_is_unavailable(index: Index) -> None:
    index.table.ready = False
    with serving(index) as (server, client):
        code, text = client.refusal()
        assert code == "UNAVAILABLE"
        assert "GET /ready" in text
        assert server.counts.refused == {"not_ready": 1}
        index.table.ready = True
        client.ask()


def test_what_cannot_be_read_is_an_invalid_argument(index: Index) -> None:
    with serving(index) as (server, client):
        assert client.refusal(b"\xff")[0] == "INVALID_ARGUMENT"
        assert server.counts.refused == {"malformed": 1}
        client.ask()


OF_OTHER_INDEXES = [
    "/kv_indexer.v1.KVIndexer/ApplyExternalKvBatch",
    "/kv_indexer.v1.KVIndexer/ConfigureExpectedWorkers",
    "/kv_indexer.v1.KVIndexer/ReplaceExternalKvSnapshot",
    "/kv_indexer.v1.KVIndexer/MatchExternalKv",
    "/kv_indexer.v1.KVIndexer/GetExternalKvHitCounts",
    "/radix_index.RadixIndex/Pull",
    "/radix_index.RadixIndex/Digests",
    "/radix_index.RadixIndex/PullHolders",
]


def test_methods_of_other_indexes_say_what_to_do_instead(index: Index) -> None:
    with serving(index) as (server, client):
        for asked, path in enumerate(OF_OTHER_INDEXES, 1):
            code, text = client.refusal(b"", path)
            assert code == "UNIMPLEMENTED", path
            assert path.rpartition("/")[2] in text
            assert "Reprise" in text
            assert server.counts.refused == {"not_served": asked}


def test_an_unexpected_fault_is_told_as_ours_and_the_next_call_is_answered(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(index) as (server, client):
        with monkeypatch.context() as patched:
            patched.setattr(type(index.table.kernel), "query_by_engine_hash", None)
            assert client.refusal()[0] == "INTERNAL"
        assert server.counts.refused == {"internal": 1}
        client.ask()


class Waiting:
    """A call, as far as it says how long its client still waits."""

    def __init__(self, left_s: float | None) -> None:
        self._left_s = left_s

    def time_remaining(self) -> float | None:
        return self._left_s


def test_what_nobody_waits_for_any_more_is_not_computed(index: Index) -> None:
    served = calls.Calls(
        index.table, index.counts, GrpcSettings(listen=ListenAddress()), only_exact=False
    )
    late: Any = Waiting(0.0)
    with pytest.raises(GrpcRefusal) as caught:
        served._answered(lambda message, _: message, b"", late, NO_SPAN)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.reason == "expired"
    for left in (0.1, None):
        waiting: Any = Waiting(left)
        assert served._answered(lambda message, _: message, b"x", waiting, NO_SPAN) == b"x"


def test_a_message_above_the_bound_is_refused_and_the_next_call_is_answered(index: Index) -> None:
    with serving(index) as (_, client):
        assert client.refusal(bytes(GRPC_MESSAGE_BYTES_MAX + 1))[0] == "RESOURCE_EXHAUSTED"
        client.ask()


def test_each_query_of_a_stream_is_answered_with_its_number(index: Index) -> None:
    index.add("a", 3, url="u")
    with serving(index) as (server, client):
        stream = Stream(client, SUBSCRIBE)
        for query_id in (5, 0, 2**64 - 1):
            answer = RADIX.Match.FromString(stream.ask(query(query_id)))
            assert answer.query_id == query_id
            assert [(one.holder, one.matched_blocks) for one in answer.scores] == [("u", 3)]
        assert server.counts.streams == 1
        stream.close()
        assert list(stream.answers) == []
    assert server.counts.streams == 0
    assert server.counts.calls == {("Subscribe", "OK"): 1}


def test_each_update_of_a_stream_is_acknowledged(index: Index) -> None:
    with serving(index) as (server, client):
        stream = Stream(client, PUBLISH)
        for seq in (1, 2):
            update = RADIX.Update(holder="h", epoch=1, seq=seq).SerializeToString()
            assert RADIX.PublishAck.FromString(stream.ask(update)).applied_seq == seq
        assert server.counts.updates == {"not_followed": 2}
        stream.close()


def test_a_stream_of_an_index_that_is_not_ready_ends(index: Index) -> None:
    with serving(index) as (_, client):
        stream = Stream(client, SUBSCRIBE)
        stream.ask(query(1))
        index.table.ready = False
        with pytest.raises(grpc.RpcError) as caught:
            stream.ask(query(2))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_streams_have_a_bound(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GRPC_STREAMS_MAX", 2)
    with serving(index) as (server, client):
        held = [Stream(client, SUBSCRIBE) for _ in range(2)]
        for stream in held:
            stream.ask(query(1))
        with pytest.raises(grpc.RpcError) as caught:
            Stream(client, SUBSCRIBE).ask(query(1))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.counts.refused == {"too_many_streams": 1}
        client.ask()
        held[0].close()
        assert list(held[0].answers) == []
        Stream(client, SUBSCRIBE).ask(query(1))


def test_calls_have_a_bound(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a message each, it is one of memory."""
    monkeypatch.setattr(server_module, "GRPC_CALLS_MAX", 2)
    with serving(index) as (server, client):
        first, second = Stream(client, SUBSCRIBE), Stream(client, SUBSCRIBE)
        for stream in (first, second):
            stream.ask(query(1))
        assert client.refusal()[0] == "RESOURCE_EXHAUSTED"
        first.close()
        until(lambda: server.counts.streams == 1, what="the end of a stream")
        assert client.ask()
        second.close()


def test_a_stream_that_nobody_reads_is_given_up_and_holds_up_nobody_else(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "GRPC_WRITE_S", 0.2)
    for number in range(40):
        index.add(f"engine-{number}", 8, url=f"http://{number}/" + "x" * 1000)
    with serving(index) as (server, client):
        stream = Stream(client, SUBSCRIBE)
        for number in range(3000):
            stream.send(query(number))
        until(lambda: server.counts.refused == {"answer_not_read": 1}, what="the end of it")
        assert server.counts.streams == 1, "it is counted until its client has gone"
        client.ask()
        stream.answers.cancel()
        until(lambda: server.counts.streams == 0, what="its client to go")


def test_an_address_in_use_is_named(index: Index) -> None:
    with serving(index) as (server, _):
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}.*--grpc"):
            GrpcServer(index.table, GrpcSettings(listen=ListenAddress(port=port)))


def test_it_stops_while_streams_are_open(index: Index) -> None:
    with serving(index) as (_, client):
        stream = Stream(client, SUBSCRIBE)
        stream.ask(query(1))
    with pytest.raises(grpc.RpcError):
        list(stream.answers)
    assert not any(thread.name == "reprise-grpc" for thread in threading.enumerate())


def test_bytes_that_are_no_http_2_end_their_connection_alone(index: Index) -> None:
    with serving(index) as (server, client):
        host, _, port = server.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for sent in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), preface * 9):
            with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw:
                raw.sendall(sent)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
            client.ask()


TRACED = [("traceparent", TRACEPARENT)]


def test_a_call_with_a_trace_has_a_span_and_others_have_none(index: Index) -> None:
    spans = KeptSpans()
    index.add("a", 3, url="u")
    with serving(index, spans.tracer, model_name="m") as (_, client):
        assert client.ask(metadata=TRACED) == client.ask()
        client.ask(metadata=[("traceparent", "no context")])
        client.ask(metadata=[("traceparent", UNSAMPLED)])
    (kept,) = spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("reprise.query", TRACE, ROUTER_SPAN)
    assert kept.attributes == {
        "gen_ai.request.model": "m",
        "reprise.blocks": 1,
        "reprise.index.position": "0:1234",
        "reprise.matched_blocks": 1,
        "reprise.tenant": "default",
        "rpc.method": "MatchExternalKvPrefix",
        "rpc.service": "kv_indexer.v1.KVIndexer",
        "rpc.system": "grpc",
    }


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (TRACED, TRACEPARENT),
        ([("traceparent", TRACEPARENT.encode()), ("other", "x")], TRACEPARENT),
        ([*TRACED, ("tracestate", "a=1")], f"{TRACEPARENT} a=1"),
        (TRACED * 2, ""),  # which the library itself makes one
        ([("other", TRACEPARENT)], ""),
        ([], ""),
    ],
)
def test_the_metadata_of_a_call_has_its_trace(
    metadata: list[tuple[str, str | bytes]], found: str
) -> None:
    assert parent_of(metadata) == found


def test_each_query_of_a_stream_with_a_trace_has_a_span(index: Index) -> None:
    spans = KeptSpans()
    index.add("a", 3, url="u")
    with serving(index, spans.tracer) as (_, client):
        with closing(Stream(client, SUBSCRIBE, metadata=TRACED)) as stream:
            for number in (1, 2):
                stream.ask(query(number))
        update = RADIX.Update(holder="u").SerializeToString()
        with closing(Stream(client, PUBLISH, metadata=TRACED)) as stream:
            stream.ask(update)
    kept = spans.take()
    assert [(one.name, one.parent) for one in kept] == [("reprise.query", ROUTER_SPAN)] * 2
    assert kept[0].attributes == {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": len(PROMPT),
        "reprise.index.position": "0:1234",
        "reprise.index.state": "exact",
        "reprise.matched_tokens": 3 * BLOCK_SIZE,
        "reprise.tenant": "default",
        "rpc.method": "Subscribe",
        "rpc.service": "radix_index.RadixIndex",
        "rpc.system": "grpc",
    }


def test_the_span_of_a_call_that_is_refused_is_an_error(index: Index) -> None:
    spans = KeptSpans()
    with serving(index, spans.tracer) as (_, client), pytest.raises(grpc.RpcError):
        client.ask(b"\xff", metadata=TRACED)
    (kept,) = spans.take()
    assert (kept.is_error, kept.attributes["error.type"]) == (True, "GrpcRefusal")
