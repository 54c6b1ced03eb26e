"""Why a caller is refused."""

from collections.abc import Mapping
from types import MappingProxyType

from schemas.errors import RepriseError


class AccessError(RepriseError):
    """A request that its caller may not make, or not now. Operator action: `reprise keys`.

    Attributes:
        reason: one word that a client can switch on.
        message: one sentence for people.
        field: of the request at fault, or None.
        status: as HTTP has it: 401 without a key that is known, 403 with one that has not the right
            or not the tenant, 429 too often.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        status: int = 403,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.reason = reason
        self.message = message
        self.field = field
        self.status = status
        self.headers = headers
        super().__init__(message)


_CHALLENGE = MappingProxyType({"www-authenticate": 'Basic realm="reprise", Bearer realm="reprise"'})
"""Basic, too, so that a web browser asks for the key: as the password, with any name. Basic first:
Chromium reads no further than the first scheme of a line, and does not ask if it is Bearer.
"""


def no_key() -> AccessError:
    """Nothing says who asks."""
    text = "Expected a key: `Authorization: Bearer rk_...`, got none; `reprise keys add` makes one"
    return AccessError("no_key", text, status=401, headers=_CHALLENGE)


def unknown_key() -> AccessError:
    """What was given is no key of this service: unknown, revoked, or not its secret."""
    text = "The key is not known here: it was never made, or revoked, or is misspelt"
    return AccessError("unknown_key", text, status=401, headers=_CHALLENGE)


def expired_key(key_id: str) -> AccessError:
    """It was one."""
    text = f"The key {key_id} has expired; `reprise keys add` makes another"
    return AccessError("expired_key", text, status=401, headers=_CHALLENGE)


def too_often(reason: str, text: str, after_s: int) -> AccessError:
    """The caller is to come back later.

    Args:
        reason: which bound.
        after_s: when, whole seconds from now.
    """
    return AccessError(reason, text, status=429, headers={"retry-after": str(after_s)})
