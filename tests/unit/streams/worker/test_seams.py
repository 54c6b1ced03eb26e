"""Faust as the worker overrides it: most of the names are private, and may go in any release."""

import importlib.metadata
import inspect
import re
from pathlib import Path

import faust
import pytest
from faust.app.base import BootStrategy
from faust.streams import Stream
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from mode.threads import WorkerThread

from streams.worker import app

REPOSITORY = Path(__file__).parents[4]
OVERRIDDEN = [
    (app._Daemon, WorkerThread),
    (app._Thread, driver.AIOKafkaConsumerThread),
    (app._Consumer, driver.Consumer),
    (app._Transport, driver.Transport),
    (app._Tables, TableManager),
    (app._Boot, BootStrategy),
    (app.WorkerApp, faust.App),
]
OWN = {
    "_Daemon.__init__",
    "_Tables._open",
    "_Consumer._read_past",
    "WorkerApp.__init__",
    "WorkerApp._end",
    "WorkerApp._fold",
    "WorkerApp._started_or_failed",
    "WorkerApp.new_consumer",
    "WorkerApp.open_tables",
    "WorkerApp.run",
}
"""Names that are not Faust's, and must not become so."""

CALLED = [
    (driver.AIOKafkaConsumerThread, "_ensure_consumer", ["self"]),
    (driver.Consumer, "assignment", ["self"]),
    (driver.Consumer, "position", ["self", "tp"]),
    (driver.Consumer, "seek_wait", ["self", "partitions"]),
    (TableManager, "_update_channels", ["self"]),
    (Stream, "take_events", ["self", "max_", "within"]),
]


def functions_of(cls: type) -> dict[str, object]:
    return {name: one for name, one in vars(cls).items() if inspect.isfunction(one)}


@pytest.mark.parametrize(("ours", "base"), OVERRIDDEN, ids=lambda one: one.__qualname__)
def test_what_is_overridden_is_there_with_the_same_parameters(ours: type, base: type) -> None:
    assert base in ours.__mro__
    for name, function in functions_of(ours).items():
        if f"{ours.__name__}.{name}" in OWN:
            continue
        theirs = getattr(base, name, None)
        assert theirs is not None, f"{base.__name__} has no {name}"
        expected = _shape(theirs)
        assert _shape(function) == expected, f"{base.__name__}.{name}{expected}"
        assert _is_async(function) == _is_async(theirs), f"{base.__name__}.{name}"


def test_what_is_ours_hides_nothing_of_the_bases() -> None:
    known = {(ours.__name__, base) for ours, base in OVERRIDDEN}
    for qualified in OWN:
        class_, _, name = qualified.partition(".")
        if name == "__init__":
            continue
        (base,) = [base for ours, base in known if ours == class_]
        assert not hasattr(base, name), qualified


@pytest.mark.parametrize(("cls", "name", "parameters"), CALLED)
def test_what_is_called_is_there(cls: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(cls, name)).parameters) == parameters


def test_what_is_read_is_there() -> None:
    assert hasattr(driver.Transport, "Consumer")
    assert driver.AIOKafkaConsumerThread.Worker is WorkerThread
    assert "_read_offset" in inspect.getsource(driver.AIOKafkaConsumerThread)
    assert "generation_id=self.app.consumer_generation_id" in inspect.getsource(driver.Consumer)


@pytest.mark.parametrize("package", ["faust-streaming", "mode-streaming", "aiokafka"])
def test_what_is_installed_is_what_is_pinned(package: str) -> None:
    pins = (REPOSITORY / "constraints.txt").read_text()
    found = re.search(rf"^{package}==(\S+)$", pins, re.MULTILINE)
    assert found is not None
    assert importlib.metadata.version(package) == found[1]


def _shape(function: object) -> list[tuple[str, object, bool]]:
    """Names and kinds of the parameters, and which may be left out."""
    assert callable(function)
    return [
        (one.name, one.kind, one.default is not inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
    ]


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function)
