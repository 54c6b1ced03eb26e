"""LMCache's own Kafka topic, which servers of its multi-process mode write.

batches.py    the wire: one value of the topic, or one body of `POST /events`
servers.py    all servers: whose batch counts, what is missing, what they hold, records
writer.py     what they have told, into one log
consumer.py   reads the topic, and has it written
"""
