"""Bounds that several modules of `routing/` rely on."""

from typing import Final

from schemas.limits import MIB, PUBLISHERS_MAX

# What is above a bound goes, the class first that had no outcome for the longest: counter
# `classes_forgotten` of the estimates; `outcomes_unusable`.
ESTIMATED_CLASSES_MAX: Final = 1024  # of models and instances; some 4 KiB each, in one row
ESTIMATED_MODELS_MAX: Final = 1024  # of which outputs are remembered, 100 bytes each

# It is a fold, so these bounds are the same for every reader.
BOOKINGS_MAX: Final = 65_536  # some 300 bytes each: reprise_routing_dropped_total{reason="no_room"}
BOOKINGS_BYTES_MAX: Final = 64 * MIB  # of them, with their names: likewise

ROUTING_CHECKPOINT_S: Final = 10.0  # how often what was folded is kept; the rest is read again
ROUTING_CHUNKS_MAX: Final = 1024  # of one checkpoint; a larger state is not kept, which is said
EARLY_OUTCOME_S: Final = 60.0  # for a decision that is told of to come: reason="unknown_decision"
RECORD_STEP_S: Final = 60.0  # that one record advances the clock of a fold: others' may be wrong
FAILING_ENDS_KEPT: Final = 64  # of a model's requests, by which it is told how often they fail
REQUEST_STAY_S: Final = 2.0  # that other requests are decoded for, where no outcome says so yet
FAILING_LOOK_S: Final = 1.0  # between two looks who is failing
LOAD_TARGETS_MAX: Final = 4 * PUBLISHERS_MAX  # with a load sample; the oldest goes: of="samples"
LOAD_MODELS_MAX: Final = 1024  # whose requests' work is known; the least recent goes, 200 bytes
LOAD_SAMPLE_S: Final = 60.0  # an older sample says nothing any more
RETRY_AFTER_MAX_S: Final = 60  # what a refused client is told at the most

# It is a fold, so these bounds are the same for every reader. What is dropped:
# reprise_routing_forgotten_total, of what is given.
PROMISES_OPEN_MAX: Final = 32_768  # of which more may be told; 2 KiB each: of="promises"
CONTRADICTIONS_MAX: Final = 16_384  # publishers with decisions, 2 KiB each: of="outcome_windows"
DECISION_MARKS_MAX: Final = 64  # prefixes of one decision; a prompt has no use for more
HOT_COUNTERS_MAX: Final = 1024  # prefixes of one scope that are counted, 600 bytes each
PREDICTED_MARKS_MAX: Final = 262_144  # 400 bytes each; the oldest go: of="predicted"
SESSIONS_MAX: Final = 65_536  # 300 bytes each; the least recent goes: of="sessions"

TARGETS_KEPT_S: Final = 0.25  # after this it is looked again who is registered, and how it is
QUEUED_SUMMED_MAX: Final = 1024  # prompts of one target that a report looks at: its time
LOAD_SUM_MAX: Final = 2**40  # of what is booked at one target; what is above it, is not told apart
ROUTE_REPEAT_S: Final = 60.0  # a request id that comes again within this gets the same answer
ROUTE_ANSWERS_MAX: Final = 16_384  # kept for that, about 1 KiB each; the oldest goes:
# reprise_routing_forgotten_total{of="answers"}
ROUTE_ANSWERS_BYTES_MAX: Final = 64 * MIB  # of them, with all names: likewise
ROUTING_QUEUE_ITEMS: Final = 65_536  # decisions, reports and samples that are not written yet:
# reprise_routing_dropped_total{reason="queue_full"}
