"""The log of records: `interface.py` is its contract, `embedded.py` a log on this disk,
`events_topic.py` reads the one in Kafka, `tail.py` shows either to people.
"""
