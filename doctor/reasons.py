"""What was expected where a message, a batch, an event or a block was refused, and what to do."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from doctor.diagnosis import CLEAR


class Reason(NamedTuple):
    """Why something was refused.

    Attributes:
        expected: what would have been used.
    """

    expected: str
    remedy: str


_FORMAT: Final = (
    "docs/compatibility.md, `On the wire`, says what a publisher sends: register the engine with"
    " the `type` that it is, and let a publisher of your own send that"
)
_ENGINE: Final = "look whether docs/compatibility.md lists this release of the engine"
_OURS: Final = "look at the bridge's log for the error, and report it"
_BEGIN: Final = f"to begin with an empty cache on both sides, {CLEAR}"
_FULL: Final = f"give the bridge more CPU, or start another bridge; then {CLEAR}"
_SIZE: Final = "let the engine publish smaller batches; docs/fail.md, `Limits`, has the bounds"
_SALT: Final = (
    "let the engine publish the extra keys of each block, or of none; docs/compatibility.md says"
    " what each kind of key means"
)
_PARENT: Final = (
    f"publish a block after its parent, and a root block with the parent `null`; {_BEGIN}"
)

_FRAMES: Final = "three frames: a topic, a sequence number of 8 bytes, a msgpack payload"
_BATCH: Final = "a msgpack array: Unix seconds, an array of events, a rank"
_EVENT: Final = "an event with the fields of its kind"

REASONS: Final[Mapping[str, Reason]] = MappingProxyType(
    {
        # Of messages
        "frame_count": Reason(_FRAMES, _FORMAT),
        "sequence_length": Reason("a sequence number of 8 bytes, big-endian", _FORMAT),
        "sequence_range": Reason(
            "a sequence number below 2^63, of 8 bytes, big-endian: 0, 1, 2, ...", _FORMAT
        ),
        "inbox_full": Reason("no more than the bridge can take in time", _FULL),
        "held_full": Reason("no more than can wait while the engine replays", _FULL),
        "earlier_incarnation": Reason("batches of the engine's present process", _BEGIN),
        "replay_differs": Reason(
            "the same batches live and from the replay socket",
            "register the engine's and rank's own `replay_endpoint`",
        ),
        # Of batches
        "message_too_large": Reason("a message within the bound", _SIZE),
        "undecodable": Reason(_BATCH, _FORMAT),
        "unknown_kind": Reason(
            "a `type` that this version knows", "run one version of Reprise in every role"
        ),
        "bad_timestamp": Reason(f"{_BATCH}; the time comes first", _FORMAT),
        "rank_mismatch": Reason(
            "batches of the registered rank",
            "register each rank with its own endpoint and its `dp_rank`",
        ),
        "other_worker": Reason("events of one worker", "register each worker by its own endpoint"),
        "too_many_events": Reason("a batch within the bound", _SIZE),
        "too_many_values": Reason("a batch within the bound", _SIZE),
        "batch_too_large": Reason("a batch within the bound", _SIZE),
        "internal_error": Reason("no error of Reprise", _OURS),
        # Of events
        "events_missing": Reason("event numbers without a hole", _BEGIN),
        "larger_window": Reason("one attention window", _BEGIN),
        "unknown_window": Reason("one attention window", _BEGIN),
        "shared_tier": Reason("a clear of tiers that are the engine's own", _ENGINE),
        "unknown_event": Reason("an event that engines of this `type` send", _FORMAT),
        "unknown_field": Reason("the fields that engines of this `type` send", _ENGINE),
        "lookahead": Reason("blocks that depend on the tokens up to their end alone", _ENGINE),
        "malformed_event": Reason(_EVENT, _FORMAT),
        "unknown_medium": Reason("a storage tier that is known", _ENGINE),
        "bad_hashes": Reason("an array of block hashes: numbers, or bytes", _FORMAT),
        "bad_parent": Reason("a parent: a block hash, or `null`", _FORMAT),
        "bad_tokens": Reason(
            "an array of token ids, numbers from 0 to 2^32 - 1",
            f"publish token ids, not text; {_FORMAT}",
        ),
        "bad_block_size": Reason("a block size of at least 1", _FORMAT),
        "bad_group": Reason("a cache group from 0 on", _FORMAT),
        "bad_extra_keys": Reason("extra keys of a form that is known", _SALT),
        "bad_copy_counts": Reason("a count of copies for each hash", _ENGINE),
        "name_too_long": Reason("names within the bound", "shorten the name of the adapter"),
        "too_many_lora_names": Reason(
            "as many adapters as the bound allows", "unregister it, and register it again"
        ),
        "too_many_blocks": Reason("an event within the bound", _SIZE),
        "other_stream": Reason(
            "objects of the registered model, tenant and block size",
            "where that is its model, and clients call it otherwise: register the pool with"
            ' `"labels": {"model_in_keys": ...}`; a store that other models share has this until'
            " an engine of the registered model stores something",
        ),
        # Of blocks
        "unknown_parent": Reason("a parent that was announced before, or `null`", _PARENT),
        "unresolved": Reason(
            "blocks with their token ids, or blocks that were announced with them before",
            "publish `token_ids`, `parent_block_hash` and `block_size` of each block: hashes alone"
            f" say nothing of the prompt; {_BEGIN}",
        ),
        "token_count": Reason(
            "as many token ids as blocks times `block_size`",
            f"publish whole blocks only; {_FORMAT}",
        ),
        "extra_keys": Reason("extra keys for each block, or for none", _SALT),
        "hash_conflict": Reason("one hash for one block", f"{_BEGIN}; {_ENGINE}"),
        "hold_count": Reason("a block that is announced as often as it is removed", _BEGIN),
        "waiting": Reason("no more placeholders than can wait", _BEGIN),
        "seed": Reason(
            "one hash seed for all engines of a model",
            "start the engines with the same PYTHONHASHSEED",
        ),
        "overflow": Reason("no more left out blocks than are kept", _BEGIN),
    }
)
"""Every reason, by its name in the log and in `LeftOut`."""

_UNKNOWN: Final = Reason("what engines of this `type` send", _FORMAT)


def reason_of(name: str) -> Reason:
    """What is known of it: a bridge of a later version may have another reason."""
    return REASONS.get(name.partition(":")[0], _UNKNOWN)
