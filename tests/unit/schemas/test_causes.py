"""Errors of the system, of TLS and of decoders, in words of ours."""

import errno
import socket
import ssl

import msgspec
import pytest

from schemas.causes import cause_of
from schemas.limits import ERROR_DETAIL_CHARS_MAX


class Limits(msgspec.Struct):
    port: int
    share: float = 0.0


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something (_ssl.c:1006)")
    error.reason = reason
    return error


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), ..."),
            "Connection refused",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "No such file or"),
        (OSError(errno.EINVAL, "it is no regular file, but a FIFO", "/x"), "it is no regular file"),
        (socket.gaierror(-2, "Name or service not known"), "no address is known of its name"),
        (TimeoutError(), "no answer in time"),
        (tls_error("WRONG_VERSION_NUMBER"), "it answers without TLS"),
        (tls_error("SOMETHING_ELSE"), "something else"),
        (untrusted(), "its certificate is not trusted (self-signed certificate)"),
        (RecursionError("maximum recursion depth exceeded"), "its values are nested too deep"),
        (ValueError("the key has a password"), "the key has a password"),
        (ValueError("a\nb\x1b[2J"), "a b?[2J"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_what_the_system_says_is_said_in_words(error: Exception, text: str) -> None:
    found = cause_of(error)
    assert found.startswith(text)
    assert "Errno" not in found
    assert "_ssl.c" not in found


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"port": "x"}', "port must be an integer, got a string"),
        (b'{"port": 1, "share": null}', "share must be a number, got null"),
        (b"[]", "it must be an object, got an array"),
        (b"{}", "port is required"),
        (b"x", "no JSON: invalid character at byte 0"),
        (b'{"port":', "it ends within a value"),
    ],
)
def test_what_a_decoder_says_is_said_in_words(content: bytes, text: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(content, type=Limits)
    assert cause_of(caught.value) == text


def test_a_text_is_cut() -> None:
    assert len(cause_of(ValueError("x" * 10_000))) == ERROR_DETAIL_CHARS_MAX
