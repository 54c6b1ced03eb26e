"""A kind of publisher is one module in `bridge/wire/`; what an unknown one sends is counted."""

from bridge.wire import KINDS, SOURCES, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.registration import PublisherKind
from tests.unit.bridge.messages import registration


def test_every_module_with_a_kind_is_found_and_nothing_else_names_it() -> None:
    assert set(KINDS) == set(SOURCES) == {"vLLM", "SGLang"}
    for kind in KINDS:
        open_source(registration(kind=kind), PythonArrayPacker())


def test_errors_name_the_kinds_as_conductor_orders_them() -> None:
    assert KINDS == ("vLLM", "SGLang")


def test_batches_of_an_unknown_kind_are_numbered_and_counted_as_lost() -> None:
    source = open_source(registration(kind=PublisherKind("Newer")), PythonArrayPacker())
    batch = source.decode([b"", (7).to_bytes(8, "big"), b"anything"])
    assert (batch.sequence, batch.engine_time, batch.events) == (7, None, [])
    (dropped,) = batch.dropped
    assert dropped.reason == DropReason.UNKNOWN_KIND
    assert "vLLM or SGLang, got: Newer" in str(dropped)
