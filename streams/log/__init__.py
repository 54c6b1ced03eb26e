"""The log of records: `interface.py` is its contract, `embedded.py` a log on this disk. Of the
events topic `events_topic.py` has what a worker needs, `events_logs.py` reads it as such logs.
`tail.py` shows either to people.
"""
