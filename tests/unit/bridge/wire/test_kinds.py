"""A kind of publisher is one module in `bridge/wire/` and one entry in `SOURCES`; what an unknown
one sends is counted.
"""

from importlib import import_module
from pkgutil import iter_modules

import pytest

from bridge import wire
from bridge.wire import KINDS, SOURCES, mooncake, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.errors import BatchError
from schemas.registration import NO_EVENTS, PUBLISHER_KINDS, STREAMED_KINDS, PublisherKind
from tests.unit.bridge.messages import registration

CONDUCTORS = [PublisherKind("vLLM"), PublisherKind("SGLang"), PublisherKind("Mooncake")]


def test_every_module_with_a_kind_has_its_entry_in_the_table() -> None:
    modules = [import_module(entry.name) for entry in iter_modules(wire.__path__, "bridge.wire.")]
    found = {module.KIND: module.open_source for module in modules if hasattr(module, "KIND")}
    assert found == dict(SOURCES)
    assert list(KINDS) == list(SOURCES)
    undecoded = {one for one, facts in PUBLISHER_KINDS.items() if facts.is_self_registered}
    undecoded -= set(STREAMED_KINDS)
    assert PUBLISHER_KINDS.keys() - SOURCES.keys() == undecoded | {NO_EVENTS}
    assert set(CONDUCTORS) <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_a_decoder_whose_messages_have_numbers(kind: PublisherKind) -> None:
    source = open_source(registration(kind=kind), PythonArrayPacker())
    batch = source.decode([b"", (7).to_bytes(8, "big"), b"\xc1"])
    first = mooncake.FIRST_NUMBER if kind == mooncake.KIND else 0
    assert (batch.sequence, batch.events) == (7 - first, [])
    assert [type(error) for error in batch.dropped] == [BatchError]


def test_errors_name_the_kinds_as_conductor_orders_them() -> None:
    assert [kind for kind in KINDS if kind in CONDUCTORS] == CONDUCTORS


def test_batches_of_an_unknown_kind_are_numbered_and_counted_as_lost() -> None:
    source = open_source(registration(kind=PublisherKind("Newer")), PythonArrayPacker())
    batch = source.decode([b"", (7).to_bytes(8, "big"), b"anything"])
    assert (batch.sequence, batch.engine_time, batch.events) == (7, None, [])
    (dropped,) = batch.dropped
    assert dropped.reason == DropReason.UNKNOWN_KIND
    assert str(dropped).endswith(f"{' or '.join(KINDS)}, got: Newer")
