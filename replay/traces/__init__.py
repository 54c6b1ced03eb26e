"""Request traces in Mooncake's JSONL format: one object a line, one line a request.

request.py        the fields of a line
reader.py         a file, line by line, up to the first line that cannot be used
writer.py         lines of requests
conversations.py  a trace of kv-cache-tester: a file for each conversation
merge.py          many of these as one trace, in the order of time
session_hits.py   how much of each session had been asked for before
"""
