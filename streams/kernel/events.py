"""Reading events, for the reference kernel: the whole array is checked before any is applied."""

import msgspec

from schemas.errors import EventsFormatError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, decode_events
from schemas.limits import HOLD_COUNT_MAX


def read_events(encoded: bytes) -> list[BlockEvent]:
    """The events of one msgpack array, all of them checked.

    Raises:
        EventsFormatError: not an array of block events, or one of them holds what none may.
    """
    try:
        events = decode_events(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventsFormatError(f"Expected an array of block events: {error}") from error
    for event in events:
        _check(event)
    return events


def _check(event: BlockEvent) -> None:
    """What the types of `schemas.events` do not say."""
    if isinstance(event, ClearedBlocks):
        return
    if len(event.hashes) % 8:
        raise EventsFormatError(f"Expected 8-byte hashes, got {len(event.hashes)} bytes")
    if not 0 <= event.group < 2**32:
        raise EventsFormatError(f"Expected a 32-bit group, got `{event.group}`")
    if isinstance(event, RemovedBlocks):
        if not 0 <= event.left <= HOLD_COUNT_MAX:
            raise EventsFormatError(f"Expected at most {HOLD_COUNT_MAX} left, got `{event.left}`")
        return
    if len(event.tokens) % 4:
        raise EventsFormatError(f"Expected 4-byte tokens, got {len(event.tokens)} bytes")
    if event.aliases and len(event.aliases) != len(event.hashes):
        raise EventsFormatError(
            f"Expected as many aliases as hashes, got {len(event.aliases)} bytes of them"
        )
    if len(event.token_hashes) % 8:
        got = len(event.token_hashes)
        raise EventsFormatError(f"Expected 8-byte token_hashes, got {got} bytes")
    if event.parent is not None and not 0 <= event.parent < 2**64:
        raise EventsFormatError(f"Expected a 64-bit parent, got `{event.parent}`")
    if not 0 <= event.block_size < 2**32:
        raise EventsFormatError(f"Expected a 32-bit block_size, got `{event.block_size}`")
    if not 0 <= event.last_blocks < 2**32:
        raise EventsFormatError(f"Expected a 32-bit last_blocks, got `{event.last_blocks}`")
