"""A table as rows: their bytes, who writes them, and the one reader of them.

No I/O is here: `streams/table/store.py` does it for the disk, `topic.py` beside it for the topic.
"""
