"""What decisions and their outcomes show: folds of the routing log beside the bookings.

    promises.py        what a decision promised, and where the tokens went that were computed anew
    promise_totals.py  sums of that by minute, model, policy and instance
    decay.py           counts that halve with time, the same on every machine
    space_saving.py    which of many things come most often, in bounded memory
    hot_prefixes.py    which prefixes are asked for most, and what became of them
    predicted_blocks.py  who will hold a prompt soon, as decisions say
    sessions.py        where the last request of a session went
    observations.py    all of them in one: two calls for each record, one checkpoint

All are pure: no clock, no I/O, no randomness. Time is that of records, the largest seen. The same
records give the same state, byte for byte, from the beginning or from a checkpoint.
"""
