"""64 clients at the gateway, and an engine that is killed each minute: ten minutes of it in
`make soak`, a part of that by `--fuzz-scale`.
"""

import asyncio
from pathlib import Path

import pytest

from tests.contract.test_gateway_contract import engines, loaded, until_enrolled, up
from tests.processes import until

SECONDS = 600.0
EVERY_S = 60.0
SHORTEST_S = 20.0


@pytest.mark.timeout(900)
def test_engine_that_is_killed_each_minute(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    scale: float = request.config.getoption("--fuzz-scale")
    seconds = max(SECONDS * scale, SHORTEST_S)
    options = ("--events", "--token-s", "0.005")
    with engines(4, *options) as found, up(tmp_path, found) as service:
        until_enrolled(service)
        every_s = min(EVERY_S, seconds / 4)
        outcomes = asyncio.run(loaded(service, found, seconds=seconds, every_s=every_s, how="kill"))
        print(dict(outcomes), f"{service.peak_bytes() / 1e6:.0f} MB")
        assert outcomes["failed"] == 0, outcomes
        until(lambda: service.get("/routing")[1]["under_way"] == 0, what="no booking is left")
        assert service.get("/gateway")[1]["under_way"] == 0
        assert service.metric("reprise_gateway_internal_errors_total") == 0
        assert not service.first_traceback()
