"""From the engines' sockets to log records: receive, decode, order, pack, hand on, repair.

The way of one message: `sockets` (ZMQ, a bounded inbox) -> `sequencing`, which asks `wire` for the
canonical events and packs records -> `delivery` to a log. `pump` drives it, in both forms;
`membership` says whose publishers are ours: `registrar` in one process, `ownership` round Kafka,
where `service` is all of it. Only `sockets` knows of threads; only `wire` knows what engines send.
"""
