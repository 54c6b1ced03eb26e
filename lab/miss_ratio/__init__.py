"""What a capture or a trace says of caches: miss-ratio curves, and regret of evictions.

order.py        the rank of a block among those that were used since
miss_ratio.py   hit rate against cache size, of one pass: Mattson's stack distances, or SHARDS
regret.py       blocks that were stored again soon after they had been removed
accesses.py     the accesses that a trace has, and those that a capture shows
report.py       tables, JSON, CSV and a plot
"""
