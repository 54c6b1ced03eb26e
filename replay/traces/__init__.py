"""Request traces in Mooncake's JSONL format: one object a line, one line a request.

request.py   the fields of a line
reader.py    a file, line by line, up to the first line that cannot be used
writer.py    lines of requests
"""
