"""What this process has told the routing log and has not read back: an overlay of the log's fold.

A decision reads the fold of the log, as far as it was read, and over it the own decisions, reports
and samples of this process of which the log has not brought the record yet. When a record comes
back, it leaves the overlay, and the fold alone says it: so nothing counts twice. In the embedded
form the log is read as it is written, and the overlay is nearly empty.

    own_records.py   which own records are not back, in their order
    bookings.py      what is under way
    failures.py      whose requests fail
    predictions.py   who will hold what
    sessions.py      where the last requests of sessions went
    samples.py       what engines carry by their own word

Each part has the fold's part of the same name as its base. The log keeps the order in which this
process writes, so a record that is missing when a later one is back was lost. What it said of
failures, predictions and sessions leaves with the later one. What it booked stays until its end is
reported, or it expires: the request is under way, though others do not know of it.
"""
