"""The prefix table: the fold that builds it, its rows on disk, and how it comes back after a
crash.
"""
