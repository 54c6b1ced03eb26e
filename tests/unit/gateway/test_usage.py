"""What engines say of tokens."""

import pytest

from gateway.usage import Usage, read_usage


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":2}}', Usage(9, None, 2)),
        (
            b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}',
            Usage(9, 4, None),
        ),
        (
            b'{"usage":{"input_tokens":9,"output_tokens":3,'
            b'"input_tokens_details":{"cached_tokens":8}}}',
            Usage(9, 8, 3),
        ),
        (b'{"type":"x","response":{"usage":{"input_tokens":5}}}', Usage(5, None, None)),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}', Usage(9, None, None)),
        (
            b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}',
            Usage(3, 3, None),
        ),
    ],
)
def test_each_spelling_is_read(document: bytes, usage: Usage) -> None:
    said = read_usage(document)
    assert said is not None
    assert said.usage == usage
    assert not said.is_alone


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[DONE]",
        b"{",
        b"[]",
        b'{"usage":null}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":"9"}}',
        b'{"usage":{"prompt_tokens":9e99}}',
        b"[" * 100_000,
        b'{"usage":"\xff"}',
    ],
)
def test_what_says_nothing_is_nothing(document: bytes) -> None:
    assert read_usage(document) is None


def test_usage_is_alone_where_no_choice_has_a_part() -> None:
    said = read_usage(b'{"choices":[],"usage":{"prompt_tokens":1}}')
    assert said is not None
    assert said.is_alone
