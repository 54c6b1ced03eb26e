"""From the engines' sockets to log records: receive, decode, order, pack, hand on, repair.

The way of one message: `sockets` (ZMQ, a bounded inbox) -> `publisher`, which gets the
canonical events from `wire` and packs records -> `delivery` to a log. `pump` drives it, in both
forms; `publisher/publisher.py` is the object that each followed publisher is.
`membership` says which publishers are followed: by `registrar` in one process, by `ownership` with
Kafka, where `service` puts everything together. Only `sockets` knows of threads; only `wire` knows
what engines send.
"""
