"""LMCache's own Kafka topic, which servers of its multi-process mode write.

batches.py    the wire: one value of the topic
servers.py    all servers: whose batch counts, what is missing, what they hold, records
consumer.py   reads the topic, and writes that into one log
"""
