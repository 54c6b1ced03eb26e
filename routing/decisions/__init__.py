"""Who gets a request: decisions over a table and over what is under way.

interface.py  what is asked of a router, and what it answers
targets.py    which instances there are for a model, and what is known of them
live.py       what is under way, as far as this service knows: its own decisions at once
queue.py      what is to be written into the routing log
router.py     one decision after the other
"""
