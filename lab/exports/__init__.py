"""A capture in forms that others read.

columns.py    the columns of the Parquet file, with types and meanings
rows.py       events as rows, in pieces of bounded size
parquet.py    the Parquet file
requests.py   events as the requests of a trace, as far as they show them
output.py     a file that stands in its place only once it is whole
"""
