"""Requests for plain queries, as clients send them, and as they should not."""

import json
import random
import struct
from contextlib import suppress
from itertools import pairwise
from urllib.parse import quote

import msgspec

from tests.building import prefix_hashes
from tests.fakes import SEED

HASHES = prefix_hashes(range(16), 4, seed=SEED)
BODY = json.dumps({"model": "m", "block_size": 4, "token_ids": list(range(40))}).encode()


def request(body: bytes = BODY, *fields: bytes, line: bytes = b"POST /query HTTP/1.1") -> bytes:
    usual = [b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([line, *usual, *fields, b"", b""]) + body


LINES = (
    b"POST /query HTTP/1.1",
    b"POST /query_by_hash HTTP/1.1",
    b"POST /query HTTP/1.0",
    b"POST /query?detail=1 HTTP/1.1",
    b"POST /query/ HTTP/1.1",
    b"GET /query HTTP/1.1",
    b"POST /query_by_hash/ HTTP/1.1",
    b"POST  /query HTTP/1.1",
    b"POST /query HTTP/1.1 ",
    b"post /query HTTP/1.1",
)
FIELDS = (
    b"X-Request-ID: 7",
    b"X-Request-ID:  7 8\t ",
    b"X-Request-ID: \xff",
    b"X-Request-ID: " + b"7" * 300,
    b"Connection: close",
    b"Connection: keep-alive",
    b"Expect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"Content-Length: 3",
    b"Content-Type: application/msgpack",
    b"Content-Type: text/plain",
    b"Content-Encoding: gzip",
    b"Origin: http://elsewhere",
    b"Accept: */*",
    b"Accept: application/msgpack",
    b"Authorization: Bearer x",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"TE: trailers",
    b"A : b",
    b" folded",
    b"A: b\nC: d",
    b"A",
    b": b",
    b"A: " + b"x" * 5000,
    *([b"B: c"] * 3),
)


def fields_of(choose: random.Random, *, by_hash: bool) -> dict[str, object]:
    content = "seq_hashes" if by_hash else "token_ids"
    fields: dict[str, object] = {"model": "m", "block_size": 4, content: list(range(40))}
    if by_hash:
        fields[content] = [*HASHES[: choose.randrange(4)], choose.getrandbits(64)]
    odd = choose.random()
    if odd < 0.1 and not by_hash:
        fields[content] = list(range(choose.choice((0, 3, 3000))))
    elif odd < 0.25:
        fields[choose.choice(("cache_salt", "instance_id", "tenant_id", "lora_name"))] = (
            choose.choice(("a", "", "b-é", 'x"', "salt"))
        )
    elif odd < 0.35:
        fields[choose.choice(("model", "block_size", content, "other"))] = choose.choice(
            (None, -1, "x", [], [-1], [1.5], 10**12)
        )
    return fields


def packed_of(choose: random.Random, fields: dict[str, object], *, by_hash: bool) -> bytes:
    """In msgpack; the numbers mostly as one `bin`."""
    name, form = ("seq_hashes", "Q") if by_hash else ("token_ids", "I")
    numbers = fields.get(name)
    if isinstance(numbers, list) and choose.random() < 0.9:
        with suppress(struct.error):
            packed = struct.pack(f"<{len(numbers)}{form}", *numbers)
            fields = {**fields, name: packed + b"x" * (choose.random() < 0.05)}
    return msgspec.msgpack.encode(fields)


def body_of(choose: random.Random, *, packed: bool, by_hash: bool) -> bytes:
    fields = fields_of(choose, by_hash=by_hash)
    if packed:
        body = packed_of(choose, fields, by_hash=by_hash)
    else:
        separators = choose.choice(((",", ":"), (", ", ": ")))
        text = json.dumps(fields, separators=separators, ensure_ascii=choose.random() < 0.5)
        body = text.encode()
    odd = choose.random()
    return choose.choice((b"", b"{", body[:-1], body + b" ")) if odd > 0.95 else body


OPTIONS = (b"hits_only=1", b"hits_only=0", b"hits_only=x", b"detail=1", b"only=exact", b"x", b"#f")


def octets_of(choose: random.Random, *, by_hash: bool) -> tuple[bytes, bytes]:
    """The part of the URL behind `?`, and the body."""
    fields = fields_of(choose, by_hash=by_hash)
    name, form = ("seq_hashes", "Q") if by_hash else ("token_ids", "I")
    numbers, body = fields.pop(name, None), b"abcd" * choose.randrange(4)
    if isinstance(numbers, list):
        with suppress(struct.error):
            body = struct.pack(f"<{len(numbers)}{form}", *numbers)
    quoting = choose.choice((quote, quote, str))  # as it should be, or as it comes
    parameters = [
        f"{name}={quoting(str(value))}".encode() for name, value in fields.items() if value != " "
    ]
    if choose.random() < 0.3:
        parameters.append(choose.choice((*OPTIONS, *parameters)))
    if choose.random() < 0.3:
        choose.shuffle(parameters)
    return b"&".join(parameters), body + b"x" * (choose.random() < 0.05)


def octets_request(choose: random.Random) -> bytes:
    by_hash = choose.random() < 0.3
    url_query, body = octets_of(choose, by_hash=by_hash)
    kind = choose.choice([b"application/octet-stream"] * 9 + [b"Application/Octet-Stream"])
    return (
        b"\r\n".join(
            [
                b"POST /query%b?%b HTTP/1.1" % (b"_by_hash" if by_hash else b"", url_query),
                b"Content-Type: " + kind,
                b"Content-Length: %d" % len(body),
                *choose.sample(FIELDS, choose.choice((0, 0, 0, 1))),
                b"",
                b"",
            ]
        )
        + body
    )


def request_of(choose: random.Random) -> bytes:
    if choose.random() < 0.2:
        return octets_request(choose)
    packed, by_hash = choose.random() < 0.4, choose.random() < 0.3
    body = body_of(choose, packed=packed, by_hash=by_hash)
    line = LINES[by_hash] if choose.random() < 0.9 else choose.choice(LINES)
    if choose.random() < 0.1:
        line = line.replace(b" HTTP", b"?%b HTTP" % choose.choice(OPTIONS))
    kind = b"msgpack" if packed != (choose.random() < 0.02) else b"json"
    usual = [
        b"Host: x",
        b"Content-Type: application/%b" % kind,
        b"Content-Length: %d" % len(body),
    ]
    if choose.random() < 0.1:
        usual.pop(choose.randrange(2))  # without a length, what follows is another request
    fields = [*usual, *choose.sample(FIELDS, choose.choice((0, 0, 0, 1, 1, 2)))]
    if choose.random() < 0.3:
        choose.shuffle(fields)
    names = choose.choice((bytes, bytes, bytes.lower))
    end = b"\n" if choose.random() < 0.02 else b"\r\n"
    return end.join([line, *map(names, fields), b"", b""]) + body


def pieces_of(choose: random.Random, sent: bytes) -> list[bytes]:
    cuts = sorted(choose.randrange(len(sent) + 1) for _ in range(choose.choice((0, 0, 1, 2, 5))))
    edges = [0, *cuts, len(sent)]
    return [sent[a:b] for a, b in pairwise(edges) if a < b]
