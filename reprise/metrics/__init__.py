"""What `/metrics` of every role exposes, one file a subject. A metric is one entry of one tuple.

    family        an entry: name, help, labels and where its samples come from
    process       readiness, conditions and internal errors of every role
    publishers    what was received of each publisher, and what is folded of it
    log           the embedded log
    table         tables, folds and the index
    delivery      a bridge's way to Kafka, and who owns which publisher
    replica       a replica's lag, rows and registry
    worker        a worker's records and restarts
    http          connections of the HTTP server, and what it refused
    roles         which role exposes which of them

Names follow Prometheus: `reprise_<subject>_<what>_<unit>`, counters end in `_total`. A name means
the same in every role. What the app counts of its requests stands in `query_api.http.metrics`.
"""
