"""What a client is told in place of an engine's answer, as OpenAI's API says it.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

`code` is one word that a client can switch on.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from query_api.access.errors import AccessError
from query_api.http.errors import RequestError
from schemas.errors import RepriseError

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class GatewayError(RepriseError):
    """A request that no engine answers.

    Operator action: by `code`; `reprise_gateway_refused_total` counts each.

    Attributes:
        code: one word.
        param: the field of the request at fault, or None.
        headers: of the answer, beside those that all have.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] = _NONE,
    ) -> None:
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers
        super().__init__(message)


def refusal_of(error: RepriseError) -> GatewayError:
    """The same, of what the service's own rooms refuse: keys, rates, bodies."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, RequestError | AccessError):
        return GatewayError(
            error.status, error.reason, error.message, param=error.field, headers=error.headers
        )
    return GatewayError(503, "unavailable", str(error))


class _Detail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _Body(msgspec.Struct):
    error: _Detail


def error_body(error: GatewayError) -> bytes:
    """As it is answered."""
    kind = _TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    return msgspec.json.encode(_Body(_Detail(str(error), kind, error.param, error.code)))
