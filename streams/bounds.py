"""Bounds that several modules of `streams/` rely on."""

from typing import Final

STORE_GENERATION_DELTAS: Final = 2.0  # times the live state, of deltas before it is rewritten

BRIDGES_REMEMBERED_MAX: Final = 32  # by their last heartbeat; publishers of others are unconfirmed

LEFT_OUT_BLOCKS_MAX: Final = 65_536  # of a publisher, that the index cannot use; 60 bytes each
TIERS_SHOWN_BATCHES: Final = 1_000
"""After so many batches without a gap, none of which has stored elsewhere than on the GPU, an
engine is taken to have no other tier: offloading stores what is computed within moments.
"""
WAITING_MAX: Final = 2**20
"""Objects of one pool, by adapter, that may wait for an engine to announce their blocks: some 70
bytes each; reprise_kernel_blocks_total{outcome="waiting_overflow"}.
"""

WORKER_POLL_S: Final = 0.01  # between two looks whether Faust knows the agent's topic, at the start
WORKER_STALL_CHECK_S: Final = 10.0  # how often it is looked whether records are missing

HISTORY_RETRY_S: Final = 10.0  # after it could not be written: reprise_history_recording

GROUP_MAX: Final = 63  # cache groups above it are not remembered as skipped, nor more as prefixes
