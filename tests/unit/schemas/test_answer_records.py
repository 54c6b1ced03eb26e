"""The record of answers: what is written is read, and nothing else is taken for one."""

import msgspec
import pytest

from schemas.answer_records import (
    ANSWERS_VERSION,
    AnsweredInstance,
    AnsweredRank,
    AnsweredScope,
    AnswerPosition,
    GivenAnswer,
    encode_answer,
    encode_answers,
    end_answer,
)
from schemas.codec import decode_answers
from schemas.errors import RecordFormatError, RecordVersionError
from tests.building import u64s

GIVEN = GivenAnswer(
    positions=(AnswerPosition(0, 7),),
    scope=AnsweredScope("default", "m", "", 16, ""),
    instance_id=None,
    hits_only=True,
    tokens=40,
    hashes=u64s([1, 2, 2**64 - 1]),
    instances=(AnsweredInstance("a", 32, 16, 32, 0, (AnsweredRank(3, 32, 16, 32, 32),)),),
    time=1.5,
    state="exact",
    sequence=9,
)


def encoded(given: GivenAnswer) -> bytes:
    first = encode_answer(
        given.positions,
        given.scope,
        given.instance_id,
        hits_only=given.hits_only,
        tokens=given.tokens,
        hashes=given.hashes,
        instances=given.instances,
    )
    return first + end_answer(given.time, given.state, given.sequence)


@pytest.mark.parametrize("count", [0, 70_000])
def test_a_record_has_the_answers_that_were_put_into_it(count: int) -> None:
    record, answers = decode_answers(encode_answers(5, 1337, count, encoded(GIVEN) * count))
    assert (record.run, record.seed, record.version) == (5, 1337, ANSWERS_VERSION)
    assert (record.replica, answers) == ("", [GIVEN] * count)


def test_a_record_says_which_replica_gave_its_answers() -> None:
    encoded_record = encode_answers(5, 1337, 1, encoded(GIVEN), replica="host:13333")
    record, answers = decode_answers(encoded_record)
    assert (record.replica, record.run, answers) == ("host:13333", 5, [GIVEN])
    fields = msgspec.msgpack.decode(encoded_record)
    del fields["replica"]  # as an older one wrote it
    assert decode_answers(msgspec.msgpack.encode(fields))[0].replica == ""


def test_an_answer_is_the_array_that_the_document_says() -> None:
    assert msgspec.msgpack.decode(encoded(GIVEN)) == [
        [[0, 7]],
        ["default", "m", "", 16, ""],
        None,
        True,
        40,
        u64s([1, 2, 2**64 - 1]),
        [["a", 32, 16, 32, 0, [[3, 32, 16, 32, 32]]]],
        1.5,
        "exact",
        9,
    ]


def test_what_a_newer_one_adds_is_ignored() -> None:
    fields = [*msgspec.msgpack.decode(encoded(GIVEN)), "more"]
    record = {"kind": "answers", "version": 1, "run": 1, "seed": 2, "answers": [fields], "x": 1}
    assert decode_answers(msgspec.msgpack.encode(record))[1] == [GIVEN]


@pytest.mark.parametrize("answers", [[], {"other": 1}])
def test_a_newer_version_is_told_from_bytes_that_are_no_record(answers: object) -> None:
    record = {"kind": "answers", "version": ANSWERS_VERSION + 1, "run": 1, "answers": answers}
    with pytest.raises(RecordVersionError):
        decode_answers(msgspec.msgpack.encode(record))
    with pytest.raises(RecordVersionError):
        decode_answers(msgspec.msgpack.encode(record | {"seed": 1}))


@pytest.mark.parametrize(
    "wrong",
    [
        b"\xc1",
        msgspec.msgpack.encode({"kind": "events", "version": 1}),
        encode_answers(1, 1, 2, encoded(GIVEN)),
        encode_answers(1, 1, 1, encoded(GIVEN)[:-1] + b"\xff"),
        encode_answers(1, 1, 1, encoded(msgspec.structs.replace(GIVEN, tokens=-1))),
    ],
)
def test_what_is_no_record_is_refused(wrong: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode_answers(wrong)
