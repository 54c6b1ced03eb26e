"""One object for each publisher that is followed, and its parts.

`publisher.py` is the object: its states, whether it is confirmed, when its engine is asked.
`sequencer.py` is the order of its batches, with `stream.py` (what is accepted, and of which
incarnation it is),
`held_batches.py` (what waits) and `window.py` (records). `repair.py` decides what a replay is asked
for and what of it is taken; `replay_client.py` asks. `follower.py` does for all publishers what
their objects decide; `intake.py` makes records of what a turn has received of them.
"""
