"""The requests that are derived from an engine's events are those it was given, but for such as it
held already.
"""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lab.exports.requests import Requests
from lab.miss_ratio.accesses import chain_of
from replay.as_records import CaptureRecords
from replay.block_events import BlockEvents
from replay.capture.reader import Capture
from replay.chains import Chains
from replay.traces.request import TraceRequest
from schemas.events import BlockEvent
from tests.building import BLOCK, STREAM, events_record, stored
from tests.unit.replay.test_block_events import capture_of

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25)


def told(chains: list[list[int]], sequences: list[int], instance: str) -> list[bytes]:
    """What an engine that evicts nothing publishes of these prompts."""
    held: set[int] = set()
    records = []
    stream = STREAM._replace(instance_id=instance)
    for sequence, chain in zip(sequences, chains, strict=True):
        events: list[BlockEvent] = []
        new = [block for block in chain if block not in held]
        if new:
            held.update(new)
            at = len(chain) - len(new)
            tokens = [block % 2**32 for block in new for _ in range(BLOCK)]
            parent = chain[at - 1] if at else None
            events = [stored(sequence, new, tokens, parent=parent)]
        records.append(events_record(sequence, sequence, events, stream=stream))
    return records


@given(prompts, st.integers(1, 3))
def test_an_engines_prompts_come_back(prompts: list[list[int]], each: int) -> None:
    chains = [chain_of(TraceRequest(0, 0, 0, prompt)) for prompt in prompts]
    held: set[int] = set()
    expected = []
    for at, chain in enumerate(chains):
        if set(chain) - held:
            expected.append((at, chain))
        held |= set(chain)
    records = told(chains, list(range(len(chains))), "a")
    with tempfile.TemporaryDirectory() as directory:
        path = capture_of(Path(directory) / "a.capture", records)
        with Capture(path) as capture:
            steps = BlockEvents(CaptureRecords(capture))
            size = each * BLOCK
            found = list(Requests(steps, Chains(1), block_size=size, join_s=0.0))
    assert [one.timestamp for one in found] == [1000 * (at - expected[0][0]) for at, _ in expected]
    assert [one.input_length for one in found] == [BLOCK * len(chain) for _, chain in expected]
    names: dict[int, int] = {}
    for one, (_, chain) in zip(found, expected, strict=True):
        ends = [end for end in range(1, len(chain) + 1) if not end % each or end == len(chain)]
        assert len(one.hash_ids) == len(ends)
        for end, block_id in zip(ends, one.hash_ids, strict=True):
            assert names.setdefault(chain[end - 1], block_id) == block_id
    assert len(set(names.values())) == len(names)
