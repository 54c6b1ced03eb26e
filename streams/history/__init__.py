"""Time travel: what a table held at a past position.

`store.py` keeps every row that a table has written, past ones too; `recorder.py` puts them there as
the table writes them; `rows_as_of.py` reads those that counted at a position, and `past.py` folds
the rest of the log behind them. `log_times.py` finds the position of a time.
"""
