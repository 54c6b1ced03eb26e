"""What the commands that read the events of a capture have in common."""

from pathlib import Path
from typing import TYPE_CHECKING

from reprise.cli.replay import records_of
from storage.faults import disk_errors
from storage.files import open_file

if TYPE_CHECKING:
    from replay.block_events import BlockEvents
    from replay.capture.reader import Capture
    from replay.chains import Chains
    from schemas.progress import StopCheck, Tell

_PARTIAL = (
    "the range begins after its log did: chains that were stored before are known from their first"
    " block in it on"
)


def is_capture(file: Path) -> bool:
    """Whether a file begins as captures do; a trace does not."""
    from replay.capture.format import MAGIC

    with disk_errors("read", file), open_file(file) as opened:
        return opened.read(len(MAGIC)) == MAGIC


def steps_of(
    capture: "Capture", of_publishers: dict[str, object], tell: "Tell", stopped: "StopCheck"
) -> "BlockEvents":
    """The events of a capture of either kind."""
    from replay.block_events import BlockEvents

    total = None if capture.header.publishers else capture.entries
    records = records_of(capture, of_publishers)
    return BlockEvents(records, total=total, tell=tell, stopped=stopped)


def notes_of(capture: "Capture", steps: "BlockEvents", chains: "Chains") -> list[str]:
    """What is not whole about a capture, and what of it could not be used."""
    notes = list(capture.notes)
    if capture.is_partial:
        notes.append(_PARTIAL)
    for what, counts in (("records", steps.skipped), ("blocks", chains.counters)):
        said = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()) if count)
        if said:
            notes.append(f"{what} that are not usual: {said}")
    return notes
