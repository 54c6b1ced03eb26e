"""Which right each route needs, and who has made a request.

The rules are by method and first part of the path, so that a route cannot be forgotten: what has
none needs `admin`, and a test asks for one of every route of the app.
"""

from typing import Final, NamedTuple

from starlette.requests import HTTPConnection
from starlette.types import Scope

from query_api.access.guard import Guard
from query_api.access.rights import OPEN, Access, Right
from query_api.http.wire import header

CERTIFICATE_NAMES: Final = "reprise.certificate"
"""Where the state of a request has the names of its client's certificate, as a server puts them."""

BREAK_OFF: Final = "reprise.break_off"
"""Where the state of a request has what ends its connection, as a server puts it: behind an answer
that will not be whole.
"""

IS_PLAIN: Final = "reprise.is_plain"
"""Where the state of a request says, once it is answered, that the listener may have answered it
(`query_api.http.plain_listener`), as the app puts it.
"""

_ACCESS: Final = "reprise.access"
"""Where the scope of a request has its caller's `Access`."""


class Rule(NamedTuple):
    """What a route needs.

    Attributes:
        for_all: whether its answer cannot be told apart by tenant, so that a key for some tenants
            is refused.
        is_probe: whether it may be asked without a key, for one word.
    """

    right: Right
    for_all: bool = False
    is_probe: bool = False


_QUERY: Final = Rule(Right.QUERY)
_READ: Final = Rule(Right.READ)
_READ_ALL: Final = Rule(Right.READ, for_all=True)
_ROUTE_ALL: Final = Rule(Right.ROUTE, for_all=True)
_COMMAND: Final = Rule(Right.COMMANDS, for_all=True)
_FEEDBACK: Final = Rule(Right.FEEDBACK)
_REGISTER: Final = Rule(Right.REGISTER)
_PROBE: Final = Rule(Right.READ, is_probe=True)
_UNKNOWN: Final = Rule(Right.ADMIN)

RULES: Final[dict[tuple[str, str], Rule]] = {
    ("POST", "query"): _QUERY,
    ("POST", "query_by_hash"): _QUERY,
    ("GET", "explain"): _QUERY,
    ("POST", "explain"): _QUERY,
    ("POST", "route"): Rule(Right.ROUTE),
    ("POST", "feedback"): _FEEDBACK,
    ("POST", "load"): _FEEDBACK,
    ("POST", "register"): _REGISTER,
    ("POST", "unregister"): _REGISTER,
    ("GET", "services"): _READ,
    ("GET", "doctor"): _READ,
    ("GET", "gaps"): _READ,
    ("GET", "global_view"): _READ,
    ("GET", "digest"): _READ,
    ("GET", "memory"): _READ,
    ("GET", "promises"): _READ,
    ("GET", "prefixes"): _READ,
    ("GET", "advice"): _READ,
    ("GET", "routing"): _READ,
    ("GET", "decisions"): _READ,
    ("GET", "gateway"): _READ_ALL,
    ("GET", "events"): _READ,
    ("GET", ""): _READ,
    ("GET", "ui"): _READ,
    ("GET", "docs"): _READ,
    ("GET", "openapi.json"): _READ,
    ("GET", "health"): _PROBE,
    ("GET", "ready"): _PROBE,
    # Of all tenants at once: counts and times of the service, and what is learned of models.
    ("GET", "metrics"): _READ_ALL,
    ("GET", "models"): _READ_ALL,
    # LMCache's own words name instances and workers, no tenants.
    ("POST", "lookup"): Rule(Right.QUERY, for_all=True),
    ("GET", "controller"): _READ_ALL,
    ("POST", "query_instance"): _READ_ALL,
    ("POST", "query_worker_info"): _READ_ALL,
    ("POST", "check_finish"): _COMMAND,
    ("GET", "commands"): _COMMAND,
    ("POST", "commands"): _COMMAND,
    ("POST", "clear"): _COMMAND,
    ("POST", "pin"): _COMMAND,
    ("POST", "move"): _COMMAND,
    ("POST", "compress"): _COMMAND,
    ("POST", "decompress"): _COMMAND,
    ("POST", "health"): _COMMAND,
    # Dynamo's select service has routing groups, which its callers name as they like.
    ("POST", "select"): _ROUTE_ALL,
    ("POST", "select_and_reserve"): _ROUTE_ALL,
    ("POST", "potential_loads"): _ROUTE_ALL,
    ("POST", "overlap_scores"): _ROUTE_ALL,
    ("POST", "reservations"): _ROUTE_ALL,
    ("DELETE", "reservations"): _ROUTE_ALL,
    ("GET", "loads"): _READ_ALL,
    ("GET", "workers"): _READ_ALL,
    ("POST", "workers"): Rule(Right.REGISTER, for_all=True),
    ("PATCH", "workers"): Rule(Right.REGISTER, for_all=True),
    ("DELETE", "workers"): Rule(Right.REGISTER, for_all=True),
    ("GET", "dump"): _READ_ALL,
    ("GET", "replica_sync"): _READ_ALL,
    ("POST", "replica_sync"): Rule(Right.ADMIN, for_all=True),
}


def rule_of(method: str, path: str) -> Rule:
    """What a request needs."""
    first = path[1:].partition("/")[0]
    return RULES.get(("GET" if method == "HEAD" else method, first), _UNKNOWN)


def note_access(scope: Scope, access: Access) -> None:
    """Notes what a request may do that a part of this process makes: no guard is asked for it."""
    scope[_ACCESS] = access


def admit(guard: Guard, scope: Scope) -> None:
    """Lets a request through, and notes who made it.

    Raises:
        AccessError: it may not be made, or not now.
    """
    if _ACCESS in scope:  # no server puts that there
        return
    rule = rule_of(scope["method"], scope["path"])
    client = scope.get("client")
    access = guard.admit(
        header(scope["headers"], b"authorization"),
        client[0] if client else "",
        rule.right,
        certificate=scope.get("state", {}).get(CERTIFICATE_NAMES, ()),
        is_probe=rule.is_probe,
    )
    if rule.for_all:
        access.check_all_tenants()
    scope[_ACCESS] = access


def access_of(request: HTTPConnection | Scope) -> Access:
    """Of whoever made the request."""
    scope = request.scope if isinstance(request, HTTPConnection) else request
    access: Access = scope.get(_ACCESS, OPEN)
    return access
