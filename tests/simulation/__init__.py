"""The simulation lane: real parts of the system on a simulated clock, broker, disk and network.

    loop             an event loop whose clock jumps, and processes on it that are killed and paused
    broker           Apache Kafka in memory, under the names of aiokafka's clients
    disk             RocksDB in memory, with full disks, power cuts and deaths between two writes
    engines          publishers with a cache, links that cut and drop, and a replay buffer
    crowd            what engines do and what happens to them
    events_writer    publishers whose records a test writes itself
    world_bridges    engines -> bridges -> broker: pump, writer, spool, cursors, ownership
    world_tables     events -> workers -> table topic -> replicas: table, recovery, rows, snapshot
    world_embedded   engines -> pump -> log -> table in one process on one disk
    history          one run of a world: its seed, its steps, and a digest of all that came of it

One seed decides everything. A failure prints it, with the last steps: see `test_worlds`. What is
simulated apart: Faust and its agents (`world_tables.Worker` plays their part), ZeroMQ, threads,
HTTP; the integration suites have those.
"""
