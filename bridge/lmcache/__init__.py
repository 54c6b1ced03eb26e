"""LMCache's controller: its three sockets, what its workers hold, and how that reaches the log.

    messages.py    the wire: LMCache's messages, as structs
    locations.py   LMCache's names of storage backends, as tiers
    keys.py        the chunk hashes of one worker, and the bound on those of all
    full_sync.py   one full sync, from its start to its last batch
    worker.py      one worker: its operations in order, what is missing, what it is asked for
    member.py      a worker with its links and signs of life
    peers.py       which worker another one can get chunks from
    controller.py  all workers: what is answered to a message
    journal.py     what becomes of a worker, as records
    confirmed.py   whether a worker is confirmed, for heartbeats into the log
    links.py       the links of a bound socket, by their descriptors
    sockets.py     the thread that serves the sockets
    service.py     all of these over one log
    settings.py    addresses, and the model of each instance

A worker freezes its cache until its full sync is answered, so every answer is given on the thread
of the sockets, from memory: nothing here waits for a log, a disk or a broker.
"""
