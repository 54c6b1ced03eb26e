"""The capture file: `format.py` says what its bytes are, `writer.py` and `reader.py` write and read
it; `from_log.py`, `from_kafka.py` and `from_zmq.py` fill one.
"""
