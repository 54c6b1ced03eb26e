"""One object for each publisher that is followed, and its parts.

`publisher.py` is the object: whether it is confirmed, when its engine is asked. `waits.py` is where
its frames wait, each place with its reason and its end: `Publisher.waits_for`.

    received  -> sequencer.py   the order of its batches, a turn at a time: with `stream.py` (what
                                is accepted, and of which incarnation), `held_batches.py` (what
                                waits) and `window.py` (what becomes a record)
                 stream.py      has `links.py` (over which links batches came), `arrivals.py` (what
                                came live), `causes.py` (why batches are missing), `pairing.py`
              -> appender.py    hands its records to the sink, and holds it back
    large     -> bulk.py        decodes a large message beside the turns
    missing   -> repair.py      what a replay is asked for and what of it is taken;
                                `replay_client.py` asks

`follower.py` does for all publishers what their objects decide.
"""
