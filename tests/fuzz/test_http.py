"""A hostile client against `reprise up` as a process, beside a neighbour."""

import json
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from reprise.bounds import HTTP_HEAD_BYTES_MAX
from schemas.limits import MIB
from storage.rocksdb import DATABASE_WRITE_BUFFER_BYTES
from tests.fuzz.http_attacker import KEPT
from tests.fuzz.neighbour import Neighbour
from tests.processes import Service

pytestmark = pytest.mark.timeout(3600)

REQUESTS = 1_000_000
ROUND = 50_000
# The client keeps few connections, and no request of it is larger than two of the bound on heads,
# but for the bodies of megabytes that it sends one after the other; and what the neighbour stores
# in those minutes fills the buffers of the log and the table. All the rest is slack.
BUFFERS_BYTES = 2 * DATABASE_WRITE_BUFFER_BYTES
GROWTH_BYTES_MAX = 2 * KEPT * HTTP_HEAD_BYTES_MAX + BUFFERS_BYTES + 16 * MIB


def attack(service: Service, seed: int, count: int) -> dict[str, int]:
    """How many answers had which status; the service answered whatever was whole."""
    address = urlsplit(service.base_url)
    command = [sys.executable, "-m", "tests.fuzz.http_attacker", str(address.hostname)]
    command += [str(address.port), str(seed), str(count)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(ended.stdout)
    assert found["faults"] == [], "\n".join(found["faults"])
    statuses: dict[str, int] = found["statuses"]
    return statuses


def forget_registrations(service: Service) -> None:
    """Of whoever the attacker registered: with more of them it would be another test."""
    for one in service.get("/services")[1]["services"]:
        if one["InstanceID"] in ("keeping", "moving"):
            continue
        target = {"type": one["Type"], "modelname": one["ModelName"], "dp_rank": one["DPRank"]}
        names = {"instance_id": one["InstanceID"], "tenant_id": one["TenantID"]}
        assert service.post("/unregister", target | names)[0] == 200


def test_requests_that_nobody_expects(
    service: Service, seed: int, scaled: Callable[[int], int]
) -> None:
    try:
        with Neighbour(service, seed).beside() as neighbour:
            quiet_ms = neighbour.measure(1000)
            before = service.peak_bytes()
            neighbour.begin()
            left = scaled(REQUESTS)
            while left:
                statuses = attack(service, seed + left, min(left, ROUND))
                assert statuses["200"] > statuses["400"] / 10 > 0
                left -= min(left, ROUND)
                forget_registrations(service)
            neighbour.check_p99(quiet_ms)
            assert service.peak_bytes() - before < GROWTH_BYTES_MAX
            neighbour.check_once_quiet()
            assert service.first_traceback() == ""
            assert service.metric("reprise_internal_errors_total") == 0
    except BaseException as error:
        error.add_note(f"--seed {seed}")
        raise
