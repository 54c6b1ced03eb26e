"""The simulation lane: real parts of the system on a simulated clock, broker, disk and network.

    loop             an event loop whose clock jumps, and processes on it that are killed and paused
    broker           Apache Kafka in memory, under the names of aiokafka's clients
    disk             RocksDB in memory, with full disks, power cuts and deaths between two writes
    engines          publishers with a cache, and a replay buffer
    oddities         what they send that is not as their release has it, and what becomes of that
    announced        what an index can know of a cache
    links            what bridges have of engines: links that cut and drop, replays, HTTP
    crowd            what engines do and what happens to them
    oracle           which states of publishers may be answered, and which must be
    events_writer    publishers whose records a test writes itself
    row_order        rows of a flush, and changes of the kernel, in any order
    watches          what is watched as it happens: who writes, who may, what spools had
    faust            in place of Faust: one member of a group after the other
    world_bridges    engines -> bridges -> broker: pump, writer, spool, cursors, ownership
    world_tables     events -> workers -> table topic -> replicas: table, recovery, rows, snapshot
    world_embedded   engines -> pump -> log -> table in one process on one disk
    world_cluster    all of it: engines, bridges, broker, workers, replicas, and routed clients
    history          one run of a world: its seed, its steps, and a digest of all that came of it

The state oracle knows nothing of the product. `announced` is a model of what can be known of each
cache; from it and from what the log has follows what must be said of a publisher. During a history
no publisher is `exact` that has not what its engine had within the last seconds, all of it usable,
or whose stream has a rank that is not registered. Once nothing is under way each state has a cause,
each cause a state with its reason, and whatever was refused is counted by that reason. At last all
engines clear their caches, which heals everything: nothing degrades for ever. What replicas answer
exactly to a prompt is compared with the same model in `world_tables`, shards included. Whatever an
engine may newly send is one line of `oddities`; what can be left out of an answer has its reason in
`announced`.

One seed decides everything. A failure prints it, with the last steps: see `test_worlds`. What is
simulated apart: Faust and its agents (`faust` plays their part), ZeroMQ, threads, HTTP; the
integration suites have those.
"""
