"""The past on demand: what was captured, and what it is replayed into.

traces/    request traces in Mooncake's JSONL format
"""
