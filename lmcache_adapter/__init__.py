"""LMCache's controller: its three sockets, what its workers hold, and how that reaches the log.

    wire/          LMCache's messages, and its names of storage backends
    worker/        one worker: operations in order, what is missing, full syncs
    controller/    all workers: what is answered to each message
    sockets/       the thread that serves the sockets
    commands/      what workers are told to do, over sockets of their own
    service.py     all of these over one log
    topic/         servers of its multi-process mode: what their batches mean; its own Kafka topic
    coordinator/   the coordinator to which these servers push their batches
    journal.py     what is written of one publisher, of a worker or of a server
    room.py        what the room adds to each role; nothing else of it is known to them
    embedded.py    commands, and acting on advice, in the service in one process
    replica.py     the same on a replica
    parts.py       service, topic and coordinator, whichever is wanted
    losses.py      who is to write anew what their sink has dropped
    distributed.py a writer and heartbeats of its own, for both beside a bridge
    confirmed.py   whether a worker is confirmed, for heartbeats into the log
    state_file.py  what one run tells the next
    settings.py    addresses, and the model of each instance

What a number of LMCache's shows, a gap, a repeat or another process, is said where it is said of
engines: `bridge.publisher.tracker`. Why no more is shared is in docs/architecture.md.

A worker freezes its cache until its full sync is answered, so every answer is given on the thread
of the sockets, from memory: nothing there waits for a log, a disk or a broker.
"""
