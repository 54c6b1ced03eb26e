"""Where records are kept in order: `interface.py` says what a log is, `embedded.py` is one on this
disk.
"""
