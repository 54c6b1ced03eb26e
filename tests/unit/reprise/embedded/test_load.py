"""What engines say of their load reaches whoever the write thread was told to give it to."""

import threading
from pathlib import Path

import msgspec

from bridge.engine_http.load_settings import LoadSettings
from logs.embedded import EmbeddedLog
from reprise.settings import Settings
from schemas.routing_records import LoadSample, LoadSource, Target
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.table import Table
from tests.engine_http import engine_server
from tests.processes import until
from tests.unit.bridge.engine_http.test_load_answers import VLLM
from tests.unit.bridge.messages import registration
from tests.unit.reprise.embedded.writing import write_path

WAIT_S = 30.0


def test_samples_come_on_the_write_threads_loop(tmp_path: Path) -> None:
    taken: list[LoadSample] = []
    threads: set[str] = set()

    def take(samples: list[LoadSample]) -> None:
        threads.add(threading.current_thread().name)
        taken.extend(samples)

    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", lambda: Fold(open_kernel(1337, name="reference")), log=log)
    write = write_path(
        Settings(data=tmp_path, load=LoadSettings(scrape_s=0.05)), log, table, on_load=take
    )
    write.thread.start()
    try:
        until(lambda: write.conditions.ready, what="recovery")
        with engine_server() as engine:
            engine.replies = {"/health": (200, b""), "/metrics": (200, VLLM)}
            one = msgspec.structs.replace(registration(), http_endpoint=engine.url)
            assert write.intake.register(one).result(WAIT_S) == [one]
            until(lambda: len(taken) >= 2, what="samples")
    finally:
        write.thread.stop()
    assert threads == {"write"}
    target = Target(one.tenant_id, one.instance_id, one.dp_rank)
    assert (taken[0].target, taken[0].source) == (target, LoadSource.SCRAPED)
    assert (taken[0].running, taken[0].waiting, taken[0].kv_capacity_tokens) == (3, 2, 112_000)
    assert write.thread.faults == 0


def test_nobody_is_asked_where_that_is_not_wanted(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", lambda: Fold(open_kernel(1337, name="reference")), log=log)
    write = write_path(Settings(data=tmp_path), log, table)
    assert write.thread.load is None
    write.thread.stop()
