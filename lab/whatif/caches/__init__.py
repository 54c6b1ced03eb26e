"""Block caches: what a tier holds, and what it evicts.

interface.py   what a node needs of one
lru.py         the least recently used block goes
store.py       Mooncake's store: leases, soft pins, eviction in batches above a watermark
"""
