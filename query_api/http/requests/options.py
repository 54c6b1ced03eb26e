"""What a query's URL asks of its answer, beside what the body asks of the table.

    ?detail=1      each instance of the scope with its state, reason and since
    ?only=exact    instances whose state is not `exact` are left out
    ?hits_only=1   instances that hold nothing of the prompt are left out
    ?as_of=...     what the table held at a past position, or at a past time

Other parameters mean nothing, as in Conductor, but for one that is an option but for its spelling;
where the body is octets, they are the query's fields.
"""

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from query_api.http.errors import RequestError, shown
from query_api.ports import AsOf
from schemas.positions import Position

AS_OF_CHARS_MAX: Final = 32_768  # of a position: some 20 for each partition
URL_PARAMETERS_MAX: Final = 16  # of a query: status="400"

_YES = ("1", "true")
_NO = ("0", "false", "")


class AnswerOptions(NamedTuple):
    """How an answer is to be given; `as_of` is None for now."""

    detail: bool = False
    only_exact: bool = False
    hits_only: bool = False
    as_of: AsOf | None = None


OPTION_NAMES: Final = frozenset({"detail", "only", "hits_only", "as_of"})
_SPELLED: Final = {name.replace("_", ""): name for name in OPTION_NAMES}
_POSITION: Final = re.compile(r"[0-9]{1,10}:(?:-1|[0-9]{1,19})")


def read_parameters(url_query: bytes, *, errors: str = "replace") -> list[tuple[str, str]]:
    """What stands behind the `?` of a URL, in order.

    Args:
        url_query: as received.
        errors: what becomes of bytes that are no UTF-8; `strict`: they are refused.

    Raises:
        RequestError: more than URL_PARAMETERS_MAX; and see `errors`.
    """
    try:
        text = url_query.decode("ascii" if errors == "strict" else "latin-1")
        return parse_qsl(
            text, keep_blank_values=True, errors=errors, max_num_fields=URL_PARAMETERS_MAX
        )
    except UnicodeDecodeError as error:
        raise RequestError(
            "invalid_parameter",
            "expected URL parameters in UTF-8, percent-encoded, got the byte"
            f" 0x{error.object[error.start]:02x}",
        ) from error
    except ValueError as error:
        raise RequestError(
            "too_many_parameters",
            f"expected at most {URL_PARAMETERS_MAX} URL parameters, got more",
        ) from error


def read_options(query_string: bytes, default: AnswerOptions) -> AnswerOptions:
    """The options of one request.

    Args:
        query_string: of its URL, as received.
        default: where it names none.

    Raises:
        RequestError: a value that no option has; an option that comes twice, or whose name is
            spelled in another way, as `asOf`.
    """
    options = default
    seen: set[str] = set()
    for name, value in read_parameters(query_string):
        meant = _SPELLED.get(name.lower().replace("_", "").replace("-", ""))
        if meant is not None and (meant != name or name in seen):
            text = f"expected {meant} once, got: {shown(name)}{' again' if meant == name else ''}"
            raise RequestError("invalid_parameter", text, field=meant)
        seen.add(name)
        if name in ("detail", "hits_only"):
            if value not in _YES + _NO:
                text = f"{name} must be 1 or 0, got: {shown(value)}"
                raise RequestError("invalid_parameter", text, field=name)
            if name == "detail":
                options = options._replace(detail=value in _YES)
            else:
                options = options._replace(hits_only=value in _YES)
        elif name == "only":
            if value not in ("exact", "all"):
                text = f"only must be exact or all, got: {shown(value)}"
                raise RequestError("invalid_parameter", text, field=name)
            options = options._replace(only_exact=value == "exact")
        elif name == "as_of":
            options = options._replace(as_of=read_as_of(value))
    return options


def read_as_of(text: str) -> AsOf:
    """A position as the header `Reprise-Position` has it, Unix seconds, or a time in ISO 8601, in
    UTC where it names no zone.

    Raises:
        RequestError: it is none of them.
    """
    parts = text.split(",") if len(text) <= AS_OF_CHARS_MAX else []
    if parts and all(map(_POSITION.fullmatch, parts)):
        numbers = sorted(tuple(map(int, part.split(":"))) for part in parts)
        if len({partition for partition, _ in numbers}) == len(numbers):
            return AsOf(positions=tuple(Position(*pair) for pair in numbers))
    with suppress(ValueError, OverflowError):
        seconds = float(text)
        if math.isfinite(seconds):
            return AsOf(seconds=seconds)
    with suppress(ValueError, OverflowError):
        # A `+` that was not percent-encoded is a blank by now.
        time = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return AsOf(seconds=(time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    raise RequestError(
        "invalid_parameter",
        "as_of must be a position (0:592), Unix seconds or a time (2026-11-24T21:00:00Z),"
        f" got: {shown(text)}",
        field="as_of",
    )
