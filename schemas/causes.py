"""Why something failed, for people: the texts of libraries and of the system, in words of ours.

What no rule here knows keeps its own text. Whoever says it puts in front what failed, and behind it
what to do.
"""

import os
import re
from typing import Final

import msgspec

from schemas.limits import ERROR_DETAIL_CHARS_MAX

_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_JSON: Final = re.compile(r"^JSON is malformed: (?P<what>.*) \(byte (?P<byte>\d+)\)$")
_AT: Final = r"(?: - at `\$\.?(?P<at>.*)`)?$"
_TYPE: Final = re.compile(r"^Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`" + _AT)
_FIELD: Final = re.compile(r"^Object missing required field `(?P<name>[^`]*)`" + _AT)
_RANGE: Final = re.compile(r"^Expected `(?P<kind>\w+)` (?P<bound>[<>]=? .*?)" + _AT)
_SIGNS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_NAMED_TYPES: Final = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_SSL: Final = {
    "WRONG_VERSION_NUMBER": "it answers without TLS",
    "RECORD_LAYER_FAILURE": "it answers without TLS",
    "HTTP_REQUEST": "it was asked without TLS, which it wants",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection within the TLS handshake",
    "PEM_LIB": "no PEM, or a key that does not belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in PEM is in it",
    "NO_START_LINE": "no PEM is in it",
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate of the client",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refuses the TLS handshake",
}


def cause_of(error: BaseException) -> str:
    """What the error says, on one line, without numbers of errors, names of types and addresses in
    brackets.
    """
    text = _words(error) or type(error).__name__
    text = " ".join(text.split())[:ERROR_DETAIL_CHARS_MAX]
    return "".join(char if char.isprintable() else "?" for char in text)


def _words(error: BaseException) -> str:
    if isinstance(error, msgspec.MsgspecError):
        return _of_decoder(str(error))
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "its values are nested too deep"
    if isinstance(error, OSError):
        return _of_system(error)
    return str(error)


def _of_system(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError):  # urllib wraps the error that it met
        return _of_system(reason)
    if verified := getattr(error, "verify_message", ""):
        return f"its certificate is not trusted ({verified})"
    if isinstance(reason, str):
        return _SSL.get(reason.replace(" ", "_").upper(), reason.replace("_", " ").lower())
    if type(error).__name__ == "gaierror":
        return "no address is known of its name"
    if isinstance(error, TimeoutError) and error.errno is None:
        return str(error) or "no answer in time"
    number = error.errno
    if number is None and (found := _ERRNO.search(str(error))):
        number = int(found[1])  # asyncio joins those of several addresses into one text
    if number is None:
        return str(error)
    # asyncio puts the address that it tried in the place of the system's words.
    told = "" if "Connect call" in str(error) else error.strerror
    return told or os.strerror(number)


def _of_decoder(text: str) -> str:
    if found := _JSON.match(text):
        return f"no JSON: {found['what']} at byte {found['byte']}"
    if "truncated" in text:
        return "it ends within a value"
    if found := _TYPE.match(text):
        wanted = " or ".join(
            _NAMED_TYPES.get(one.strip(), one.strip()) for one in found["wanted"].split("|")
        )
        got = _NAMED_TYPES.get(found["got"], found["got"])
        return f"{found['at'] or 'it'} must be {wanted}, got {got}"
    if found := _RANGE.match(text):
        kind, bound = _NAMED_TYPES.get(found["kind"], found["kind"]), found["bound"]
        sign, _, number = bound.removesuffix(".0").partition(" ")
        return f"{found['at'] or 'it'} must be {kind} {_SIGNS.get(sign, sign)} {number}"
    if found := _FIELD.match(text):
        name = found["name"]
        return f"{found['at'] + '.' + name if found['at'] else name} is required"
    return text
