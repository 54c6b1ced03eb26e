"""The log of events for people: `tail.py` shows either form of it, `record_lines.py` has its lines,
`losses.py` what it is known to have lost. The log itself is a user of `logs`.
"""
