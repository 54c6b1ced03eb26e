"""Logs: records under rising offsets, written by some, followed by others, and folded.

There is one machine with two stores. A log of the embedded form is a directory (`embedded.py`), a
log of the distributed form is the partitions of a topic (`topic.py`). Events, routing, answers,
commands and the registry are its users. Two things of events are their own: what the embedded form
cannot append waits, and its publishers meanwhile (`bridge.delivery.log_sink`); and Faust has the
worker follow them.

    declaration.py       a log as its room declares it, once: `reprise.logs` lists them
    interface.py         what a log is: entries, bounds, reading, appending
    embedded.py          the store on this disk
    kept_log.py          such a store beside the events: opened when it is needed, synced, kept
                         within its bounds, opened again after a failure, set aside where damaged
    topic.py             the store in Kafka, reading once: bounds, the next record, what is damaged
    topic_logs.py        partitions as logs that any thread can read
    partition_log.py     one partition, forwards and again from its beginning
    attempts.py          what reads or writes a topic, tried again: pauses, and what goes wrong
    producer.py          the store in Kafka, writing: a producer that is started and replaced
    batch_writer.py      writes one partition, a batch at a time
    entry_writer.py      single messages, each answered once the topic has it

    waiting_appends.py   appends to a store on this disk that wait while the disk fails

    source.py            what a writer takes from: a queue, how its items become bytes, counts
    embedded_writer.py   writes a source by windows; what the disk refuses is dropped
    topic_writer.py      writes a source by windows; while Kafka is away a window waits

    follower.py          reads partitions until it is cancelled
    recent.py            the same of small topics, from a moment on
    fold_follower.py     the same into a fold that begins with a checkpoint
    skipped.py           messages that cannot be used: skipped, counted, the first ones named
    checkpoint.py        checkpoints in a file, and where a log is folded on behind one
    loop_thread.py       the thread with an event loop that all of this runs on
    shared_condition.py  one condition of health that several of these set

What goes wrong with a follower or a writer has one place each, in `attempts.Attempts.run`:

    what                         what is done                               the user's method
    Kafka is away                tries again after a pause                  `away`
    the topic is not as it       the same, or ends where the user says so   `refused`
    must be
    a batch is damaged           reads on, by the user's rule               `damaged`
    retention, or another        reads again, from where the user says      `lost`
    topic, took what is next
    a batch is under way for     waits, and says so again and again         `late`
    long
    the user's disk fails        tries again after a pause                  `disk_failed`
    anything else                the same; it is an error of the program    `failed`

A log more takes a record with its encoding, a source, a fold and its declaration: all of that is in
`tests/unit/logs/alarms.py`.
"""
