"""The room of a bridge: what is left of one that cannot be built."""

import asyncio
from pathlib import Path

import pytest

from bridge.delivery.spool import Spool
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from lmcache_adapter.distributed import LmcacheBridge
from lmcache_adapter.settings import LmcacheSettings
from schemas.errors import ConfigurationError


def test_what_cannot_be_bound_is_told_and_its_spool_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*parts: object, **named: object) -> None:
        raise ConfigurationError("the address is taken")

    async def run() -> None:
        kafka = KafkaSettings(bootstrap="k:1")
        LmcacheBridge(LmcacheSettings(), kafka, client_options(kafka), tmp_path)

    monkeypatch.setattr("lmcache_adapter.distributed.LmcacheParts", refuse)
    with pytest.raises(ConfigurationError, match="the address is taken"):
        asyncio.run(run())
    Spool(tmp_path / "lmcache-spool", bytes_max=0).close()
