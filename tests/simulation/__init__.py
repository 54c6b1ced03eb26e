"""Parts of a simulation lane: a simulated clock, broker, disk and network for real parts.

    loop      an event loop whose clock jumps, and processes on it that can be killed and paused
    broker    Apache Kafka in memory, under the names of aiokafka's clients
    disk      RocksDB in memory, with full disks, power cuts and deaths between two writes
    engines   publishers with a cache, a link that cuts and drops, and a replay buffer

No test runs on them yet: the histories that put them together are not finished.
"""
