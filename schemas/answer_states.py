"""What an answer says of itself: four states, one definition for headers, metrics, health and docs.

A publisher is *confirmed* while it is known that the log has all that it had published until at
most STALE_S ago: its bridge has seen its batches follow on one another over one link that has not
been down since, or its replay socket said that there is nothing newer. Who knows that is its
bridge, which writes it into the log as it changes, and a heartbeat beside it; a publisher is
confirmed only while its bridge's heartbeats come.
"""

import math
from enum import StrEnum
from typing import Final, NamedTuple

from schemas.identities import (
    ATTENTION_ONLY,
    CHUNKS_DIFFER,
    COPIES_UNKNOWN,
    GROUPS_DIFFER,
    HASHES_DIFFER,
    OBJECTS_WAIT,
    POOL_REMOVED,
    UNHELD_REMOVED,
)


class AnswerState(StrEnum):
    """How far an answer can be trusted; sent with every answer, the worst of its scope.

        exact        everything that the publishers in the scope had published until at most 5 s ago
                     is in the answer, and that is known
        unconfirmed  nothing is known to be missing, but it cannot be shown
        degraded     something is known to be missing: batches of a publisher in the scope, or
                     events of one, were lost, or blocks that it announces cannot be used
        stale        the table is behind its log: by more than 5 s or 100,000 records, or for as
                     long as the log cannot be reached

    README.md and docs/ use the same words. A replica cannot reach a log that it cannot read,
    the embedded service one that it cannot append to: what was received since is not in the table.
    """

    EXACT = "exact"
    UNCONFIRMED = "unconfirmed"
    DEGRADED = "degraded"
    STALE = "stale"


class Doubt(StrEnum):
    """Why a publisher is not confirmed."""

    LINK_DOWN = "link_down"  # its bridge has no link to it
    LINK_SILENT = "link_silent"  # its link is up, and its socket does not answer
    CATCHING_UP = "catching_up"  # its engine is being asked for what may be missing
    REPLAY_SILENT = "replay_silent"  # its replay socket does not answer, or not to the end
    NO_REPLAY = "no_replay"  # its link was down, and it has no replay socket to ask
    NOTHING_REPLAYED = "nothing_replayed"  # its engine has none of the batches that the log has
    REPLAY_BROKEN = "replay_broken"  # its replay breaks off, as at a message above the bound
    REPLAY_UNMATCHED = "replay_unmatched"  # its replay has shown no batch that came live
    REPLAY_DIFFERS = "replay_differs"  # its replay has other batches than came live: another's
    RECEIVED_LATE = "received_late"  # received messages have waited for too long
    PARTLY_KNOWN = "partly_known"  # the snapshot that it began with lacks what was stored before
    UNREADABLE = "unreadable"  # a message without a place in the stream: a batch may be missing
    RANK_MISSING = "rank_missing"  # its stream has events of a rank that is not registered
    NO_ENDPOINT = "no_endpoint"  # its HTTP address does not say where it publishes
    ENGINE_AWAY = "engine_away"  # its link is up, and its HTTP address does not answer
    PROCESS_CHANGED = "process_changed"  # its HTTP address names another process over the same link
    MODEL_CHANGED = "model_changed"  # it served the registered model, and serves others now
    ASLEEP = "asleep"  # it was put to sleep, and nothing has come since it was
    SPOOLED = "spooled"  # its records wait on the bridge's disk
    NOT_SYNCED = "not_synced"  # what an LMCache worker holds is not known, or not known any more
    WORKER_SILENT = "worker_silent"  # an LMCache worker's heartbeats stay away
    COPIES_UNKNOWN = COPIES_UNKNOWN  # one of several blocks of a name went: perhaps the only one
    GROUPS_DIFFER = GROUPS_DIFFER  # not all of its cache groups hold the same blocks
    HASHES_DIFFER = HASHES_DIFFER  # a pool: engines call the same blocks of it otherwise
    OBJECTS_WAIT = OBJECTS_WAIT  # a pool: of objects of it no engine has said which blocks they are
    POOL_REMOVED = POOL_REMOVED  # it has removed from a pool what only others had stored there
    POOL_CLEARED = "pool_cleared"  # what it had stored for all instances may be there yet
    LENDER_GONE = "lender_gone"  # a pool: an instance that may have lent it memory has ended
    TIERS_CLEARED = "tiers_cleared"  # it has cleared its GPU: on CPU or DISK all may be there yet
    NEVER_REMOVED = "never_removed"  # it says what is on CPU or DISK, and never what is gone
    CHUNKS_UNKNOWN = "chunks_unknown"  # what it has offloaded may be blocks kept several as one
    CHUNKS_DIFFER = CHUNKS_DIFFER  # what it has beside its GPU is of another size than registered
    PARTIAL_REUSE = "partial_reuse"  # it may have overwritten blocks, and says nothing of that
    GROUPS_UNKNOWN = "groups_unknown"  # its engine may have cache groups that nothing tells of
    DROPS_UNSAID = "drops_unsaid"  # it may lose what it holds, or events, and says nothing of that
    ADAPTER_RELOADED = "adapter_reloaded"  # it may have loaded it again: of no use is what it has
    ADAPTER_UNKNOWN = "adapter_unknown"  # a pool has blocks of the adapter: has it loaded that?
    ATTENTION_ONLY = ATTENTION_ONLY  # its windows' or recurrent states are not in the table
    UNHELD_REMOVED = UNHELD_REMOVED  # it has removed from its GPU what it had never stored
    OUTCOMES_DIFFER = "outcomes_differ"  # it finds more or less in its cache than answers say
    NO_EVENTS = "no_events"  # it publishes none: only decisions say what it holds
    NOT_FOLLOWED = "not_followed"  # no bridge follows it
    NO_HEARTBEAT = "no_heartbeat"  # its bridge has not been heard of, or is far behind


class Activity(StrEnum):
    """What a publisher does now, as its bridge sees it; says nothing of what may be missing."""

    ACTIVE = "active"  # it was heard of within the last seconds
    SILENT = "silent"  # its link is up, and nothing comes over it
    DISCONNECTED = "disconnected"  # its link is down
    REPLAYING = "replaying"  # its engine is being asked for what may be missing


LOST_BATCHES: Final = "lost_batches"
"""Reason of a degraded publisher."""

BEHIND_LOG: Final = "behind_log"
"""Reason of every publisher of a stale table."""


DAMAGED_ROWS: Final = "damaged_rows"
"""Reason of a publisher of whose table a row cannot be read."""


TOKENS_UNPROVEN: Final = "tokens_unproven"
"""Reason of the instances of an answer to text of which an engine may make other tokens."""


def badness(state: AnswerState) -> int:
    """Orders the states: the worst of a scope is what its answers say."""
    return _BADNESS[state]


_BADNESS: Final = {state: number for number, state in enumerate(AnswerState)}


class Verdict(NamedTuple):
    """The state of a scope's answers, and until when it holds, monotonic seconds, where nothing
    changes: what is `exact` now is not once heartbeats have stayed away.
    """

    state: AnswerState
    until: float = math.inf


class Standing(NamedTuple):
    """The state of one publisher in a table, why, and since when (Unix seconds, 0.0: unknown)."""

    state: AnswerState
    reason: str
    since: float
