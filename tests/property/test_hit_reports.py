"""Both of what tells hits that are reported: the kernel's, and the specification."""

from collections.abc import Sequence
from random import Random

import pytest

from bridge.wire import hit_reports
from bridge.wire.hit_reports import PythonHitReports
from schemas.arrays import HitReports
from schemas.events import BlockEvent, Cleared, Removed, Stored, decode_run, encode_run
from schemas.identities import Medium
from streams.kernel import array_packer

pytestmark = pytest.mark.skipif(
    array_packer().hit_reports(False) is None, reason="the Rust kernel is not built"
)

HASHES = 24  # few, so that chains come again


def u64s(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def event(random: Random, sequence: int) -> BlockEvent:
    choice = random.random()
    if choice < 0.02:
        return Cleared(sequence=sequence)
    group = random.choice((0, 0, 0, 1, 2**31 - 1))
    medium = random.choice((Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU))
    shared = random.random() < 0.05
    if choice < 0.1:
        values = [random.randrange(HASHES) for _ in range(random.randrange(3))]
        hashes = u64s(values)
        return Removed(sequence=sequence, hashes=hashes, medium=medium, shared=shared, group=group)
    first, blocks = random.randrange(HASHES), random.choice((0, 1, 2, 2, 3, 6))
    chain = [(first + n) % HASHES for n in range(blocks)]
    return Stored(
        sequence=sequence,
        hashes=u64s(chain),
        tokens=random.choice((bytes(4 * blocks), bytes(4 * blocks), b"")),
        parent=random.choice((None, None, (first - 1) % HASHES)),
        block_size=random.choice((1, 1, 0)),
        medium=medium,
        shared=shared,
        lora_name=random.choice(("", "", "ad")),
        group=group,
        spec_kind=random.choice(("", "", "", "full_attention", "mamba")),
        by_hash=random.random() < 0.03,
        reported=random.random() < 0.03,
        token_hashes=random.choice((b"", b"", b"", b"", u64s(chain))),
        extra_keys=random.choice(((), (), tuple(b"k" for _ in chain))),
    )


@pytest.mark.parametrize("seed", range(60))
def test_both_say_the_same_of_any_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr("schemas.limits.HIT_REPORT_BLOCKS_MAX", bound := random.choice((4, 20, 90)))
    monkeypatch.setattr(hit_reports, "HIT_REPORT_BLOCKS_MAX", bound)
    monkeypatch.setattr("schemas.limits.HIT_REPORT_FRESH", fresh := random.choice((1, 3, 64)))
    monkeypatch.setattr(hit_reports, "HIT_REPORT_FRESH", fresh)
    are_known = seed % 5 == 0
    native = array_packer().hit_reports(are_known)
    assert native is not None
    specified: HitReports = PythonHitReports(are_known)
    sequence, found_out = 0, 0
    for _ in range(200):
        events = []
        for _ in range(random.randrange(4)):
            sequence += random.random() < 0.6
            events.append(event(random, sequence))
        run = encode_run(events)
        action = random.random()
        if action < 0.02:
            native.forget()
            specified.forget()
        took = [
            one.mark(run, len(events)) if action > 0.95 else one.take(run, len(events))
            for one in (native, specified)
        ]
        assert took[0] == took[1]
        assert native.are_known == specified.are_known
        assert native.has_left_out == specified.has_left_out
        if took[0] is not None:
            written, added, _ = took[0]
            assert len(decode_run(written, len(events) + added)) == len(events) + added
            found_out += added
    assert found_out or are_known or not native.are_known
