"""The log of records: `interface.py` is its contract, `embedded.py` a log on this disk, `kafka.py`
reads the events topic.
"""
