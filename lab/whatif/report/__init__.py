"""What is told of runs: on the terminal, in files, in pictures.

document.py   all runs together; as JSON
table.py      as lines of text, and as CSV
plots.py      as PNG
page.py       as one HTML page that needs no other file
"""
