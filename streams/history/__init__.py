"""Time travel: what a table held at a past position.

`store.py` keeps every row that a table has written, past ones too; `recorder.py` puts them there as
the table writes them; `rows_as_of.py` reads those that counted at a position, of which
`needed_rows.py` says what an answer needs, and `past_fold.py` folds the rest of the log behind
them. `past_tables.py` puts partitions together. `log_times.py` finds the position of a time,
`retention.py` drops what is old. In the distributed form `follower.py` folds the events topic for
all of this.
"""
