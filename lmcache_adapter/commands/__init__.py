"""Commands to LMCache's workers: asked at their REP sockets, and read from a topic.

log.py       the log of them, as it is declared
exchange.py  one request to a worker, and its answer, within a time
executor.py  a command at all of its workers, and what became of it
topic.py     the commands of a topic, in the distributed form
"""
