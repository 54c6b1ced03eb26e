"""The only map from errors to HTTP statuses and error envelopes.

Every failure is answered with one map, `{error, reason?, field?, index?}`, in the wire form of the
request.

    AccessError                401, 403 or 429, with reason    see `query_api.access`
    RequestError               as it says: 400, 403, 408, 413, 503  with reason, often field, index
    RegistrationError          400  invalid_registration       conflicts included; Conductor's texts
    AddressRefusedError        403  address_refused
    OpenFilesError             503  open_files
    EndpointError              500  (no reason)                `Failed to subscribe: ...`; in JSON
                               400, see `routes`
    PastError                  400, or 503 where it may be tried again  with reason
    NotRegisteredError         404  (no reason)                `service not found: a|default|0`
    StorageError               503  storage
    any other error            500  (no reason)                `Internal server error`
    unknown path               404  (no reason)
    method of a known path     405  (no reason)

Where msgpack is the default (`app.create_app`), an unknown path is answered in text, as Conductor
does it.

The texts that Conductor has are the same in both wire forms. The JSON form, which people read, goes
on behind them: what came, what could have come, what to do (`RequestError.more`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from query_api.access.errors import AccessError
from query_api.bounds import BODY_PIECE_BYTES, BODY_PIECE_S, VALUE_SHOWN_CHARS_MAX
from schemas.errors import (
    AddressRefusedError,
    EndpointError,
    NotRegisteredError,
    OpenFilesError,
    PastError,
    RegistrationError,
    RepriseError,
    StorageError,
)
from schemas.limits import BODY_BYTES_MAX

BODY_RETRY_AFTER_S: Final = 1  # what a client is told whose body had no room

_CLOSE: Final = MappingProxyType({"connection": "close"})


class RequestError(RepriseError):
    """A request that cannot be answered as it was sent. Operator action: fix the named field.

    Attributes:
        reason: one word that a client can switch on; Conductor's vocabulary where it has one.
        field: the field of the body at fault, or None.
        index: 0-based place in that field's array, or None.
        more: what the JSON form says behind the message, with what separates the two.
        headers: of the answer, beside those that all answers have.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        index: int | None = None,
        status: int = 400,
        headers: Mapping[str, str] = MappingProxyType({}),
        more: str = "",
    ) -> None:
        self.more = more
        self.reason = reason
        self.message = message
        self.field = field
        self.index = index
        self.status = status
        self.headers = headers
        super().__init__(message)


class ClientGoneError(RepriseError):
    """The client left before its request was complete; there is no one to answer."""


class ErrorEnvelope(msgspec.Struct, omit_defaults=True):
    """What every failed request is answered with."""

    error: str
    reason: str | None = None
    field: str | None = None
    index: int | None = None


NOT_FOUND: Final = ErrorEnvelope(error="404 Not Found")
METHOD_NOT_ALLOWED: Final = ErrorEnvelope(error="Method not allowed")
INTERNAL: Final = ErrorEnvelope(error="Internal server error")


def body_too_large() -> RequestError:
    """The body is longer than the bound."""
    text = f"Expected a body of at most `{BODY_BYTES_MAX}` bytes, got more: send it in parts"
    return RequestError("body_too_large", text, status=413, headers=_CLOSE)


def body_too_slow() -> RequestError:
    """The body stalls, or takes too long."""
    text = (
        f"Expected `{BODY_PIECE_BYTES}` bytes of the body, or its end, every {BODY_PIECE_S:g} s,"
        " got less"
    )
    return RequestError("body_too_slow", text, status=408, headers=_CLOSE)


def no_room_for_body() -> RequestError:
    """The bodies of other requests fill the memory that there is for them."""
    text = "Too many large bodies at once; try again"
    headers = _CLOSE | {"retry-after": str(BODY_RETRY_AFTER_S)}
    return RequestError("no_room_for_body", text, status=503, headers=headers)


def stopping() -> RequestError:
    """The service ends before the request has."""
    text = "the service stops, and this may be done or not: repeat it once the service runs again"
    return RequestError("stopping", text, status=503)


def recovering(problem: str) -> RequestError:
    """The table is not complete yet, so that an answer could be wrong."""
    return RequestError("recovering", problem or "the table is being recovered", status=503)


def no_history() -> RequestError:
    """`as_of`, of a service that keeps no past."""
    text = (
        "This service keeps no history: start `reprise up` with history.gib above 0, `reprise"
        " serve` with --history"
    )
    return RequestError("no_history", text)


def unsupported_content_type(got: bytes = b"") -> RequestError:
    """Neither of the two wire forms."""
    text = "Content-Type must be application/json or application/msgpack"
    return RequestError("unsupported_content_type", text, more=f", got: {shown(got)}")


def shown(value: bytes | str) -> str:
    """What came, cut to what is worth reading; the JSON form escapes what does not print."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    is_short = len(text) <= VALUE_SHOWN_CHARS_MAX
    return text if is_short else f"{text[:VALUE_SHOWN_CHARS_MAX]}..."


def describe(error: RepriseError, *, in_full: bool = False) -> tuple[int, ErrorEnvelope]:
    """Status and envelope of an error; the table is in the module's docstring.

    Args:
        in_full: whether the text is to have what only the JSON form says.
    """
    if isinstance(error, RequestError):
        text = error.message + (error.more if in_full else "")
        return error.status, ErrorEnvelope(text, error.reason, error.field, error.index)
    if isinstance(error, AccessError):
        return error.status, ErrorEnvelope(error.message, error.reason, error.field)
    text = str(error)
    if isinstance(error, AddressRefusedError):
        return 403, ErrorEnvelope(text, "address_refused")
    if isinstance(error, EndpointError):
        prefix = "Failed to subscribe: failed to start ZMQ client: initial connection failed: "
        return 500, ErrorEnvelope(prefix + text)
    if isinstance(error, OpenFilesError):
        return 503, ErrorEnvelope(text, "open_files")
    if isinstance(error, RegistrationError):
        return 400, ErrorEnvelope(text, "invalid_registration")
    if isinstance(error, NotRegisteredError):
        return 404, ErrorEnvelope(text)
    if isinstance(error, PastError):
        return error.status, ErrorEnvelope(text, error.reason)
    if isinstance(error, StorageError):
        return 503, ErrorEnvelope(text, "storage")
    return 500, INTERNAL
