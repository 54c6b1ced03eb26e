"""Who gets a request: decisions over a table and over what is under way.

interface.py  what is asked of a router, and what it answers
targets.py    which instances there are for a model, and what is known of them
live_load.py  what a decision reads: the fold of the log, and its own records over it
queue.py      what is to be written into the routing log
kernel_decisions.py  what the kernel decides by (kernel_boards.py), and how that comes to be known
router.py     one decision after the other
"""
