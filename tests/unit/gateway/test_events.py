"""Streams of events: what is passed on, and what is read."""

import json
import random

import pytest

from gateway.events import GATEWAY_EVENT_BYTES_MAX, EventStream
from gateway.usage import Usage

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"w"}}]}\n\n'
SAID = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
LAST = b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
NULL = b'data: {"choices":[{"index":0}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b': "usage" of nothing\n\n'
LINES = b'event: x\r\ndata: {"choices":[],\r\ndata: "usage":{"prompt_tokens":9}}\r\n\r\n'
USAGE = Usage(9, None, 2)


def passed(pieces: list[bytes], *, leaves_out: bool = True) -> tuple[bytes, Usage | None]:
    stream = EventStream(leaves_out=leaves_out)
    return b"".join([*map(stream.feed, pieces), stream.end()]), stream.usage


@pytest.mark.parametrize("seed", range(20))
def test_only_usage_alone_is_left_out_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    events = [rng.choice([WORD, SAID, LAST, NULL, DONE, COMMENT]) for _ in range(12)]
    whole = b"".join(events)
    cuts = sorted(rng.sample(range(1, len(whole)), 20))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    kept = b"".join(one for one in events if one is not SAID)
    assert passed(pieces)[0] == kept
    assert passed(pieces, leaves_out=False)[0] == whole
    usage = USAGE if SAID in events or LAST in events else None
    assert passed(pieces)[1] == passed(pieces, leaves_out=False)[1] == usage


def test_events_with_other_ends_of_lines_are_read() -> None:
    assert passed([LINES]) == (b"", Usage(9, None, None))


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\r\r", b"\r\n\n", b"\n\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_streams_may_mix_ends_of_lines(end: bytes, size: int) -> None:
    word, said = (one.removesuffix(b"\n\n") + end for one in (WORD, SAID))
    whole = word + said + word + DONE
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert passed(pieces) == (word + word + DONE, USAGE)


def test_usage_beside_an_error_is_passed_on() -> None:
    failed = b'data: {"error":{"message":"lost"},"choices":[],"usage":{"prompt_tokens":9}}\n\n'
    assert passed([WORD, failed, DONE])[0] == WORD + failed + DONE


def test_whole_event_is_not_kept_back() -> None:
    stream = EventStream(leaves_out=True)
    assert stream.feed(WORD + b"data: {") == WORD
    assert stream.is_between
    assert stream.feed(b"}\n\n") == b"data: {}\n\n"


def test_event_above_the_bound_is_passed_on_as_it_comes() -> None:
    stream = EventStream(leaves_out=True)
    large = b"data: " + b"x" * (GATEWAY_EVENT_BYTES_MAX + 1)
    assert stream.feed(large) == large
    assert not stream.is_between
    assert stream.feed(b"y" * 9) == b"y" * 9
    assert stream.feed(b"\n\n" + SAID + WORD) == b"\n\n" + WORD
    assert stream.is_between


def test_last_event_without_an_end_is_passed_on() -> None:
    assert passed([WORD, b"data: cut"])[0] == WORD + b"data: cut"


def named(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


TAKEN = named("response.created", response={"id": "resp_1", "usage": None})
QUEUED = named("response.in_progress", response={"id": "resp_1", "usage": None})
TEXT = named("response.output_text.delta", delta="event: response.completed")
COMPLETED = named(
    "response.completed",
    response={
        "id": "resp_1",
        "usage": {
            "input_tokens": 9,
            "output_tokens": 2,
            "input_tokens_details": {"cached_tokens": 4},
        },
    },
)


@pytest.mark.parametrize("seed", range(20))
def test_named_events_say_their_beginning_and_their_end_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    before, after = TAKEN + QUEUED, TEXT + TEXT + COMPLETED
    whole = before + after
    cuts = sorted(rng.sample(range(1, len(whole)), 20))
    stream, came = EventStream(leaves_out=False, are_named=True), 0
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        assert stream.feed(whole[start:end]) == whole[start:end]
        came = end
        assert stream.is_done == (came == len(whole))
        first = len(before) + TEXT.index(b"\n") + 1
        assert stream.has_begun == (came >= first)
    assert stream.usage == Usage(9, 4, 2, "resp_1")


@pytest.mark.parametrize("name", ["response.incomplete", "response.failed", "error"])
def test_named_events_may_end_otherwise(name: str) -> None:
    stream = EventStream(leaves_out=False, are_named=True)
    stream.feed(TAKEN + TEXT + named(name))
    assert stream.is_done
    stream.feed(TEXT)
    assert not stream.is_done


def test_events_without_names_begin_at_once() -> None:
    stream = EventStream(leaves_out=False)
    stream.feed(WORD[:5])
    assert stream.has_begun
