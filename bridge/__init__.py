"""From the engines' sockets to log records: receive, decode, order, pack.

The way of one message: `subscriber` (ZMQ) -> `inbox` (bounded) -> `sequencer`, which asks `sources`
for the canonical events, `sequence` for its place in the stream, and `window` for the records. Only
`subscriber` and `inbox` know of threads; only `sources` know what engines send.
"""
