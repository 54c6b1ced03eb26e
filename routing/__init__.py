"""Routing: which instance gets a request, what is booked there, and what came of it.

A decision reads the fold of the routing log, and over it what this process has told the log and not
read back: see `overlay/`. What becomes of a request, and where:

    decided      by a policy               decisions/router.py     Router.route
    told         to the overlay            decisions/live_load.py  LiveLoad.book, .report, .forget
    held         until its decision comes  decisions/held_reports.py  HeldReports
    queued       for the log               decisions/queue.py      RoutingQueue
    written      to the log                log/embedded.py         RoutingLog, or log/writer.py
    read back    from the log              decisions/live_load.py  LiveLoad.follow
    booked       here, then in the fold    fold/bookings.py        Bookings.book
    reported     here, then in the fold    fold/bookings.py        Bookings.report
    released     its engine is gone        fold/bookings.py        Bookings.release
    expired      by the time of the log,   fold/bookings.py        Bookings.expire
                 here by this clock        overlay/bookings.py     OverlaidBookings.advance
                 after 300 s, or longer    fold/booking.py         BOOKING_EXPIRY_S, a timeout
    left         no own record any more    overlay/bookings.py     OverlaidBookings.come
    lost         the log does not have it  overlay/__init__.py     what stays, and what goes
    learned      times, prefixes, losses   fold/fold.py            RoutingFold.apply
    kept         as a checkpoint           logs/checkpoint.py      or fold/chunks.py in Kafka

Rooms of this room:

    policies/    who is best: pure functions, by name in table.py
    estimates/   what outcomes teach of times: folds of outcomes
    observed/    what decisions and their outcomes show: folds of both
    fold/        the fold of the log: bookings, failures, and the two above
    overlay/     what is told here and not back
    decisions/   one decision after the other: candidates, loads, the queue for the log
    log/         the routing log in both forms: written, read, recovered
    worker/      the fold in a worker, for replicas to begin with
    advice/      which hot prefixes should be copied, pinned or dropped
    http/, select/, commands/, metrics.py   how all of this is asked

Policies and folds are pure: no clock, no I/O, no randomness. The same request, candidates and
parameters give the same order on every machine, and the same records the same fold.
"""
