"""Runs the publisher of a released engine, as a process: its own code, without the engine.

Takes batches on its standard input, a line each, and answers each line once the publisher has it:

    {"ts": 1.5, "events": [{"type": "BlockStored", "block_hashes": [1], ...}, ...]}

An event is made with those of its fields that the release has; those that the release demands and
that are not given are None. A hash is a number, or bytes in hex. Ends with its input.
"""

import argparse
import inspect
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import zmq

from devtools.publishers import stubs


class Batch(msgspec.Struct):
    """One line of the input."""

    ts: float
    events: list[dict[str, Any]]


class EngineDescription(msgspec.Struct):
    """The first line of the output.

    Attributes:
        fields: of each event, by its tag.
    """

    fields: dict[str, list[str]]


def load(path: Path) -> ModuleType:
    """The release's module, under a name of its own."""
    stubs.install()
    spec = spec_from_file_location("released_kv_events", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Engine:
    """One publisher of the release.

    Args:
        module: the release's.
        settings: those of its constructor but the rank, whose name differs.
    """

    def __init__(self, module: ModuleType, *, dp_rank: int, **settings: object) -> None:
        self._module = module
        publisher = module.ZmqEventPublisher
        known = inspect.signature(publisher.__init__).parameters
        ranks = [name for name in known if name.endswith("rank")]
        assert ranks or not dp_rank, "this release has no ranks"
        self._publisher = publisher(**dict.fromkeys(ranks, dp_rank), **settings)

    def describe(self) -> EngineDescription:
        """The fields that its events have."""
        tags = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
        fields = {tag: list(getattr(self._module, tag).__struct_fields__) for tag in tags}
        if hasattr(self._module, "BlockStoredWithMetadata"):
            fields["BlockStored"].append("cache_salt")
        return EngineDescription(fields)

    def publish(self, batch: Batch) -> None:
        """Hands it to the release's publisher."""
        events = [self._event(dict(event)) for event in batch.events]
        self._publisher.publish(self._module.KVEventBatch(ts=batch.ts, events=events))

    def close(self) -> None:
        """As the engine does at its end."""
        self._publisher.shutdown()

    def _event(self, fields: dict[str, Any]) -> object:
        tag = fields.pop("type")
        event = getattr(self._module, tag)
        if "block_hashes" in fields:
            fields["block_hashes"] = [
                bytes.fromhex(one) if isinstance(one, str) else one
                for one in fields["block_hashes"]
            ]
        salted = getattr(self._module, "BlockStoredWithMetadata", None)
        if tag == "BlockStored" and fields.get("cache_salt") and salted:
            salt = self._module.BlockStoredMetadata(cache_salt=fields["cache_salt"])
            fields["metadata"] = salt
            event = salted
        return event(**{name: fields.get(name) for name in event.__struct_fields__})


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--replay-endpoint")
    parser.add_argument("--dp-rank", type=int, default=0)
    parser.add_argument("--buffer-steps", type=int, default=10_000)
    parser.add_argument("--topic", default="")
    options = parser.parse_args()
    zmq.Context.instance().setsockopt(zmq.IPV6, 1)
    engine = Engine(
        load(options.path),
        dp_rank=options.dp_rank,
        endpoint=options.endpoint,
        replay_endpoint=options.replay_endpoint,
        buffer_steps=options.buffer_steps,
        topic=options.topic,
    )
    print(msgspec.json.encode(engine.describe()).decode(), flush=True)
    decoder = msgspec.json.Decoder(Batch)
    try:
        for line in sys.stdin:
            engine.publish(decoder.decode(line))
            print("published", flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
