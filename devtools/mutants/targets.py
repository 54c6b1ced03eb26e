"""Which modules decide correctness, and which tests must kill their mutants.

Of a module's tests only those run on a mutant that call its function, so these lists may be wide.
"""

SEQUENCING = (
    "tests/unit/bridge/publisher",
    "tests/unit/bridge/test_pump.py",
    "tests/property/test_runs_equal_single_batches.py",
)
ENGINE_HTTP = ("tests/unit/bridge/engine_http", "tests/unit/bridge/test_pump_http.py")
MEMBERSHIP = ("tests/unit/bridge/membership",)
TABLE = (
    "tests/unit/streams/table",
    "tests/unit/streams/worker/test_tables.py",
    "tests/property/test_recovery_equals_never_crashing.py",
    "tests/property/test_table_topic_equals_fresh_fold.py",
)
LOG = ("tests/unit/logs/test_embedded.py", "tests/contract/test_log_contract.py")
REPLICA = ("tests/unit/query_api/replica",)
KERNEL = (
    "tests/contract/test_kernel_contract.py",
    "tests/contract/test_kernel_counters.py",
    "tests/contract/test_kernel_formats.py",
    "tests/contract/test_kernel_objects.py",
    "tests/contract/test_kernel_groups.py",
    "tests/contract/test_kernel_copies.py",
    "tests/contract/test_kernel_left_out.py",
    "tests/contract/test_kernel_pairs.py",
    "tests/contract/test_kernel_engine_hashes.py",
    "tests/contract/test_change_selection.py",
    "tests/contract/test_negative_tokens.py",
    "tests/property/test_kernel_histories.py",
    "tests/property/test_kernel_equivalence.py",
    "tests/property/test_kernel_churn.py",
    "tests/property/test_kernel_bytes.py",
    "tests/property/test_kernel_keys.py",
    "tests/property/test_engine_hashes.py",
)
PACKING = (
    "tests/property/test_batch_packer.py",
    "tests/property/test_batch_parts.py",
    "tests/contract/test_kernel_formats.py",
)
SIMULATION = ("tests/simulation",)
OBSERVED = ("tests/unit/routing/observed",)

TESTS: dict[str, tuple[str, ...]] = {
    "routing/observed/promises.py": OBSERVED,
    "bridge/publisher/tracker.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/causes.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/anchor.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/pairing.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/stream.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/repair.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/sequencer.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/waits.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/held_batches.py": (*SEQUENCING, *SIMULATION),
    "bridge/publisher/window.py": (*SEQUENCING, *SIMULATION),
    "bridge/engine_http/watch.py": (*ENGINE_HTTP, *SIMULATION),
    "bridge/engine_http/discovery.py": (*ENGINE_HTTP, *SIMULATION),
    "bridge/publisher/publisher.py": (
        *SEQUENCING,
        *SIMULATION,
    ),
    "bridge/heartbeats.py": (
        "tests/unit/bridge/test_heartbeats.py",
        "tests/unit/reprise/embedded",
        *SIMULATION,
    ),
    "bridge/membership/cursors.py": (*MEMBERSHIP, *SIMULATION),
    "bridge/membership/spool_recovery.py": (*MEMBERSHIP, *SIMULATION),
    "streams/table/fold.py": (*TABLE, "tests/contract/test_log_contract.py", *SIMULATION),
    "streams/table/batch_parts.py": (*TABLE, "tests/contract/test_log_contract.py", *SIMULATION),
    "streams/table/ledger.py": (*TABLE, *SIMULATION),
    "streams/table/recovery.py": (*TABLE, *SIMULATION),
    "streams/table/scope_states.py": (*TABLE, *REPLICA, *SIMULATION),
    "streams/table/driver.py": (*TABLE, "tests/unit/reprise/embedded", *SIMULATION),
    "streams/table/table.py": (*TABLE, *SIMULATION),
    "streams/table/rows/reader.py": (*TABLE, *REPLICA, *SIMULATION),
    "streams/table/rows/contexts.py": (*TABLE, *REPLICA, *SIMULATION),
    "streams/table/rows/rewriting.py": (*TABLE, *SIMULATION),
    "streams/table/rows/writer.py": (*TABLE, *SIMULATION),
    "streams/table/rows/loader.py": (*TABLE, *REPLICA, *SIMULATION),
    "logs/embedded.py": (*LOG, *SIMULATION),
    "streams/kernel/reference.py": KERNEL,
    "streams/kernel/hashing.py": KERNEL,
    "query_api/replica/lag.py": (*REPLICA, *SIMULATION),
    "query_api/replica/heartbeat_watch.py": (*REPLICA, *SIMULATION),
    "query_api/replica/snapshot.py": (*REPLICA, *SIMULATION),
    "brokers/clients.py": ("tests/unit/brokers", "tests/unit/bridge"),
}

ONLY: dict[str, tuple[str, ...]] = {"brokers/clients.py": ("partition_of",)}
"""Of these modules, the functions that decide; the others need a broker."""

RUST = {
    "streams/kernel/native/digits/src": ("digits", ("tests/property/test_kernel_bytes.py",)),
    "streams/kernel/native/heads/src": (
        "heads",
        ("tests/unit/reprise/http/test_plain_listener.py",),
    ),
    "streams/kernel/native/index/src": ("prefix-index", KERNEL),
    "streams/kernel/native/listener/src": (
        "listener",
        ("tests/unit/reprise/http/test_plain_listener.py",),
    ),
    "streams/kernel/native/msgpack/src": ("msgpack", PACKING),
    "streams/kernel/native/wire/src": ("wire", PACKING),
}
"""Of the Rust kernel, every file here: its package, and the tests that specify it."""
