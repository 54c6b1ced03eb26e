"""Of every route, every right and every tenant: who is answered, and about whom."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from query_api.access.access_settings import AccessSettings
from query_api.access.guard import Guard
from query_api.access.key_editing import add_key
from query_api.access.key_ring import KeyRing
from query_api.access.keys import Key, digest_of, spell
from query_api.access.rights import Access, Right
from query_api.http.caller import RULES, rule_of
from query_api.http.openapi import Documentation
from reprise.application import create_app
from schemas.memory_segments import SegmentKey, SegmentState
from streams.table.ledger import Ledger
from tests.fakes import AsgiClient, FakeTable, Reply, registration
from tests.unit.routing.http.conftest import Service

SECRET = "secret-secret"
TENANTS = ("acme", "blue")
NOTHING = frozenset[Right]()
SAYS_OPENAPI = {"/docs", "/docs/oauth2-redirect", "/openapi.json"}


def keys_in(path: Path) -> Path:
    """One of each right for all tenants, for one and for two; and one without rights."""
    for right in Right:
        for name, tenants in (
            ("all", None),
            ("acme", frozenset({"acme"})),
            ("both", frozenset(TENANTS)),
        ):
            access = Access(f"{right}.{name}", frozenset({right}), tenants)
            add_key(path, Key(digest=digest_of(SECRET), access=access))
    add_key(path, Key(digest=digest_of(SECRET), access=Access("none", NOTHING)))
    everything = Access("acme", frozenset(Right) - {Right.ADMIN}, frozenset({"acme"}))
    add_key(path, Key(digest=digest_of(SECRET), access=everything))
    return path


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keys_in(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture
def service(table: FakeTable, key_file: Path) -> Service:
    """Two tenants with the same names and prompts, but for how much they hold of it."""
    for port, tenant in enumerate(TENANTS):
        one = registration(
            instance_id="a",
            tenant_id=tenant,
            endpoint=f"tcp://127.0.0.1:{5000 + port}",
        )
        one = msgspec.structs.replace(one, memory_segment=f"kv_{tenant}")
        publisher = table.add(one)
        blocks = port + 1
        table.store(publisher, range(4 * blocks), hashes=range(1, blocks + 1))
        table.known[one.publisher] = Ledger()
        key = SegmentKey("h", f"kv_{tenant}")
        table.segments[key] = SegmentState(
            bridge="b",
            inode=1,
            total=2,
            used=1,
            preallocated=0,
            observed_at=table.now,
            changed_at=table.now,
            since=table.now,
        )
    clock = itertools.count(1000.0)  # a second for each look: nobody asks too often
    ring = KeyRing(key_file, monotonic=lambda: next(clock))
    guard = Guard(ring, monotonic=lambda: next(clock))
    return Service(table, select_service=True, guard=guard)


def bearer(key_id: str) -> str:
    return f"Bearer {spell(key_id, SECRET)}"


def routes_of(client: AsgiClient) -> Iterator[tuple[str, str]]:
    """Method and path of every route that the app has."""
    for route in client._app._app.routes:  # type: ignore[attr-defined]
        for method in route.methods:
            yield method, route.path
    for path in Documentation.PATHS:
        yield "GET", path


def call(
    client: AsgiClient, method: str, path: str, key_id: str = "", body: object = None
) -> Reply:
    headers = {"authorization": bearer(key_id)} if key_id else {}
    if method == "POST":
        return client.post_json(path, {} if body is None else body, **headers)
    return client._call(method, path, [], headers)


def test_every_route_has_a_rule_and_every_rule_a_route(service: Service) -> None:
    found = set()
    for method, path in routes_of(service.client):
        name = (method, path[1:].partition("/")[0])
        assert name in RULES, f"{method} {path} needs a rule in query_api/http/caller.py"
        found.add(name)
    assert set(RULES) <= found


def test_without_a_key_nothing_is_answered(service: Service) -> None:
    for method, path in (*routes_of(service.client), ("GET", "/"), ("GET", "/nothing")):
        path = path.replace("{", "").replace("}", "").replace("path:", "")
        reply = call(service.client, method, path)
        if path in ("/health", "/ready") and method != "POST":
            assert reply.status == 200  # the test client is on loopback
            assert reply.document() == {"ready": True}
            continue
        assert reply.status == 401, (method, path)
        assert reply.document()["reason"] == "no_key"
        assert reply.headers["www-authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize("whose", ["all", "acme", "both"])
@pytest.mark.parametrize("right", list(Right))
def test_a_right_opens_its_routes_and_no_others(service: Service, right: Right, whose: str) -> None:
    """And what cannot be told apart by tenant is refused to who sees some of them."""
    for method, path in routes_of(service.client):
        path = path.replace("{", "").replace("}", "").replace("path:", "")
        rule = rule_of(method, path)
        reply = call(service.client, method, path, f"{right}.{whose}")
        document = (
            reply.document() if b"json" in reply.headers.get("content-type", "").encode() else {}
        )
        reason = document.get("reason") if isinstance(document, dict) else None
        if right not in (rule.right, Right.ADMIN):
            assert (reply.status, reason) == (403, "no_right"), (method, path)
        elif rule.for_all and whose != "all":
            assert (reply.status, reason) == (403, "all_tenants"), (method, path)
        else:
            assert reply.status not in (401, 403) or reason == "tenant_unnamed", (method, path)


def test_unknown_paths_are_for_admins(service: Service) -> None:
    assert call(service.client, "GET", "/nothing", "read.all").status == 403
    assert call(service.client, "GET", "/nothing", "admin.all").status == 404


QUERY = {"model": "m", "block_size": 4, "token_ids": list(range(8))}


def longest(reply: Reply) -> dict[str, int]:
    assert reply.status == 200, reply.body
    return {
        tenant: instances["a"]["longest_matched"] for tenant, instances in reply.document().items()
    }


@pytest.mark.parametrize("wire", ["json", "msgpack", "octets", "options"])
def test_a_query_is_of_the_keys_tenant(service: Service, wire: str) -> None:
    def ask(key_id: str, tenant: str | None) -> Reply:
        fields = QUERY | ({} if tenant is None else {"tenant_id": tenant})
        authorization = bearer(key_id)
        if wire == "msgpack":
            return service.client.post_msgpack("/query", fields, authorization=authorization)
        if wire == "octets":
            named = "" if tenant is None else f"&tenant_id={tenant}"
            body = b"".join(token.to_bytes(4, "little") for token in range(8))
            return service.client.post(
                f"/query?model=m&block_size=4{named}",
                body,
                content_type="application/octet-stream",
                authorization=authorization,
            )
        path = "/query?only=all&detail=0" if wire == "options" else "/query"
        return service.client.post_json(path, fields, authorization=authorization)

    def found(reply: Reply) -> int:
        document = reply.document()
        assert reply.status == 200, document
        if wire == "msgpack":
            return int(document["instances"]["a"]["longest_matched"])
        (instances,) = document.values()
        return int(instances["a"]["longest_matched"])

    def reason(reply: Reply) -> str:
        assert reply.status == 403
        return str(reply.document()["reason"])

    assert found(ask("query.acme", None)) == 4
    assert found(ask("query.acme", "acme")) == 4
    assert found(ask("query.all", "acme")) == 4
    assert found(ask("query.all", "blue")) == 8
    assert found(ask("query.both", "blue")) == 8
    for other in ("blue", "default", "no one"):
        assert reason(ask("query.acme", other)) == "other_tenant"
    assert reason(ask("query.both", None)) == "tenant_unnamed"
    assert reason(ask("query.both", "default")) == "other_tenant"


def test_views_show_the_keys_tenants_alone(service: Service) -> None:
    """Everything that is answered to a key of one tenant, without a word of the other."""
    for path in (
        "/services",
        "/doctor",
        "/gaps",
        "/global_view",
        "/digest",
        "/memory",
        "/promises",
        "/prefixes",
        "/advice",
        "/routing",
        "/decisions",
        "/ui/heatmap",
        "/ui/instances",
    ):
        reply = call(service.client, "GET", path, "acme")
        assert reply.status == 200, (path, reply.body)
        assert b"blue" not in reply.body, path
        assert b"blue" in call(service.client, "GET", path, "read.all").body or path in (
            "/promises",
            "/prefixes",
            "/advice",
            "/routing",
            "/decisions",
            "/ui/heatmap",
        )
    assert len(call(service.client, "GET", "/services", "acme").document()["services"]) == 1
    assert len(call(service.client, "GET", "/gaps", "acme").document()["publishers"]) == 1
    assert call(service.client, "GET", "/memory", "acme").document()["count"] == 1
    assert call(service.client, "GET", "/ui/instances", "acme").document()["count"] == 1
    assert len(call(service.client, "GET", "/digest", "acme").document()["contexts"]) == 1
    assert call(service.client, "GET", "/global_view", "acme").document()["context_count"] == 1


def route(service: Service, key_id: str, tenant: str | None, request_id: str) -> Reply:
    body = QUERY | {"request_id": request_id} | ({} if tenant is None else {"tenant_id": tenant})
    return call(service.client, "POST", "/route", key_id, body)


def test_decisions_and_their_outcomes_are_of_the_keys_tenant(service: Service) -> None:
    own = route(service, "acme", None, "r1").document()
    others = route(service, "route.all", "blue", "r2").document()
    assert own["prefill"]["cached_tokens"] == 4
    assert others["prefill"]["cached_tokens"] == 8
    assert route(service, "acme", "blue", "r3").document()["reason"] == "other_tenant"
    service.write()
    views = ("/promises", "/prefixes", "/routing", "/advice", "/decisions", "/ui/heatmap")
    for path in (*views, f"/decisions/{own['decision_id']}"):
        shown = call(service.client, "GET", path, "acme")
        assert (shown.status, b"blue" in shown.body) == (200, False), path
    for path in ("/promises", "/decisions", "/ui/heatmap"):
        assert b"blue" in call(service.client, "GET", path, "read.all").body
    hidden = call(service.client, "GET", f"/decisions/{others['decision_id']}", "acme")
    assert (hidden.status, hidden.document()["reason"]) == (404, "unknown_decision")
    asked = call(service.client, "GET", "/promises?tenant_id=blue", "acme")
    assert (asked.status, asked.document()["reason"]) == (403, "other_tenant")

    def report(key_id: str, **fields: str) -> dict[str, int]:
        body = {"event": "completed"} | fields
        reply = call(service.client, "POST", "/feedback", key_id, body)
        assert reply.status == 202, reply.body
        found: dict[str, int] = reply.document()
        return found

    # Decisions have numbers that can be guessed: of others they are unknown.
    assert report("acme", decision_id=others["decision_id"])["unknown"] == 1
    assert report("acme", request_id="r2")["unknown"] == 1
    assert report("acme", decision_id=own["decision_id"])["accepted"] == 1
    assert report("feedback.both", request_id="r2", tenant_id="blue")["accepted"] == 1
    body = {"event": "completed", "request_id": "r2", "tenant_id": "blue"}
    assert call(service.client, "POST", "/feedback", "acme", body).status == 403


def test_what_is_registered_and_carried_is_of_the_keys_tenant(service: Service) -> None:
    fields = {
        "endpoint": "tcp://127.0.0.1:5999",
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "new",
        "block_size": 4,
        "dp_rank": 0,
    }
    call_ = service.client
    assert call(call_, "POST", "/register", "acme", fields).status == 200
    assert {one.tenant_id for one in service.table.registered()} == set(TENANTS)
    refused = call(call_, "POST", "/register", "acme", fields | {"tenant_id": "blue"})
    assert (refused.status, refused.document()["field"]) == (403, "tenant_id")
    gone = {"instance_id": "a", "modelname": "m", "dp_rank": 0, "type": "vLLM"}
    assert call(call_, "POST", "/unregister", "acme", gone | {"tenant_id": "blue"}).status == 403
    assert call(call_, "POST", "/unregister", "acme", gone).status == 200
    left = {(one.tenant_id, one.instance_id) for one in service.table.registered()}
    assert left == {("acme", "new"), ("blue", "a")}
    sample = {"instance_id": "a", "waiting": 1, "running": 1}
    assert call(call_, "POST", "/load", "acme", sample | {"tenant_id": "blue"}).status == 403
    assert call(call_, "POST", "/load", "acme", sample).status == 202


def test_refusals_are_counted_and_have_the_wire_form_of_the_request(
    service: Service, table: FakeTable
) -> None:
    reply = service.client.post_msgpack("/query", QUERY)
    assert reply.status == 401
    assert reply.document()["reason"] == "no_key"
    assert call(service.client, "POST", "/query", "none", QUERY).status == 403
    assert call(service.client, "POST", "/query", "query.acme", QUERY).status == 200
    text = call(service.client, "GET", "/metrics", "read.all").body.decode()
    for line in (
        'reprise_access_refused_total{reason="no_key"} 1.0',
        'reprise_access_refused_total{reason="no_right"} 1.0',
        'reprise_key_requests_total{key="query.acme"} 1.0',
        "reprise_keys_unreadable 0.0",
        'reprise_http_requests_total{route="/query",status="401"} 1.0',
    ):
        assert line in text
    assert SECRET not in text


def test_without_keys_everybody_may_ask(table: FakeTable) -> None:
    client = AsgiClient(create_app(table, table, guard=AccessSettings().open_guard()))
    assert client.get("/services").status == 200
    assert client.post("/query", msgspec.json.encode(QUERY)).status == 200


def test_an_openapi_path_is_a_route(service: Service) -> None:
    paths = {path for _, path in routes_of(service.client)}
    document = call(service.client, "GET", "/openapi.json", "read.all").document()
    assert set(document["paths"]) <= paths
    assert paths >= SAYS_OPENAPI - {"/docs/oauth2-redirect"}
