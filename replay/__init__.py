"""Captures of the log, and what they are replayed into; traces of requests.

capture/            the capture file, and what fills one
as_records.py       the records of a capture of either kind
folding.py          a capture as a table
publisher.py, wire_batches.py   a capture as its engines sent it
republisher.py      a log as it grows, likewise
loading.py          a capture appended to a log
block_events.py, chains.py      its events, each once; engine hashes as prefixes
traces/             request traces in Mooncake's JSONL format
analysis/           miss-ratio curves, and regret of evictions
exports/            Parquet, and a capture as a trace
"""
