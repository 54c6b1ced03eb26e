"""What came of a decision, told at once to another replica than the one that decided."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.deployments import Distributed, Tenant
from tests.processes import Api

REQUESTS = 30


@pytest.fixture
def other(tenant: Tenant, tmp_path: Path) -> Iterator[Api]:
    """Another replica; in the embedded form there is one service."""
    if not isinstance(tenant.deployment, Distributed):
        yield tenant.api
        return
    config = tmp_path / "conductor_config.json"
    config.write_text(json.dumps({"http_server_port": 1, "kvevent_instance": {}}))
    with closing(tenant.deployment.configured(config, tmp_path)) as configured:
        yield configured.api


def route(tenant: Tenant, request_id: str) -> str:
    body = {
        "model": "m",
        "block_size": 16,
        "tenant_id": tenant.tenant_id,
        "token_ids": [7] * 64,
        "request_id": request_id,
        "candidates": [{"instance_id": "a"}, {"instance_id": "b"}],
    }
    status, answer = tenant.api.post("/route", body)
    assert status == 200, answer
    name: str = answer["decision_id"]
    return name


def under_way(api: Api, tenant: Tenant) -> int:
    targets = api.get("/routing")[1]["targets"]
    return sum(one["requests"] for one in targets if one["tenant_id"] == tenant.tenant_id)


@pytest.mark.both_forms
def test_it_is_taken_without_a_pause_and_once(tenant: Tenant, other: Api) -> None:
    counts: list[dict[str, Any]] = []
    for number in range(REQUESTS):
        request_id = uuid.uuid4().hex
        names = {"request_id": request_id, "decision_id": route(tenant, request_id)}
        by = ("decision_id", "request_id")[number % 2]
        told = {by: names[by], "event": "completed", "output_tokens": 3}
        counts += [other.post("/feedback", told)[1] for _ in range(2)]
    assert counts[::2] == [{"accepted": 1, "repeated": 0, "unknown": 0}] * REQUESTS
    assert counts[1::2] == [{"accepted": 0, "repeated": 1, "unknown": 0}] * REQUESTS
    tenant.until(
        lambda: under_way(tenant.api, tenant) == under_way(other, tenant) == 0,
        "no request under way",
    )
