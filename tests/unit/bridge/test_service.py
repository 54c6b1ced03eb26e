"""What a bridge is made of, by its settings."""

import asyncio
from pathlib import Path

import pytest

from bridge.bridge_settings import BridgeSettings
from bridge.engine_http.load_settings import LoadSettings
from bridge.memory.watch import MemorySettings
from bridge.service import Bridge
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from schemas.conditions import Part
from schemas.errors import ConfigurationError
from schemas.routing_records import LoadSample

KAFKA = KafkaSettings(bootstrap="127.0.0.1:9")


def settings(data: Path, scrape_load_s: float) -> BridgeSettings:
    return BridgeSettings(kafka=KAFKA, data=data, load=LoadSettings(scrape_s=scrape_load_s))


@pytest.mark.parametrize("period", [0.0, 5.0])
def test_samples_of_load_go_to_whom_it_is_told_if_engines_are_asked(
    tmp_path: Path, period: float
) -> None:
    taken: list[LoadSample] = []

    async def run() -> None:
        bridge = Bridge(settings(tmp_path, period), client_options(KAFKA), on_load=taken.extend)
        try:
            if period:
                assert bridge.load is not None
                assert (bridge.load.on_samples, bridge.load.period_s) == (taken.extend, period)
            else:
                assert bridge.load is None
        finally:
            await bridge.pump.close()
            bridge.spool.close()

    asyncio.run(run())


def test_a_period_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Expected a period of load"):
        settings(tmp_path, -1.0)


def test_a_directory_of_segments_that_is_not_there_is_a_condition_of_the_bridge(
    tmp_path: Path,
) -> None:
    memory = MemorySettings(directory=tmp_path / "none", host="h")

    async def run() -> None:
        own = BridgeSettings(kafka=KAFKA, data=tmp_path, memory=memory)
        bridge = Bridge(own, client_options(KAFKA))
        try:
            assert bridge.memory is not None
            bridge.memory.look()
            bridge.memory.take()
            assert bridge.conditions.has(Part.MEMORY)
        finally:
            await bridge.pump.close()
            bridge.spool.close()

    asyncio.run(run())
