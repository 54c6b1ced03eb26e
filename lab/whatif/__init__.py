"""What-if: a trace of requests, nodes with block caches, and a router that asks the index.

    workload.py   a trace, with its blocks numbered
    setup.py      what one run is: nodes, caches, policy, costs, the index's delay and loss
    caches/       block caches: LRU, and Mooncake's store with leases and soft pins
    node.py       a node: its tiers, and what it publishes of them
    queue.py      what a node has been given to compute
    load_view.py  what the router knows of that, and how wrong its estimates are
    decoding.py   instances that decode, apart from the nodes
    policies/     others' policies, to compare with
    feed.py       events -> records -> the fold, late or lost
    decided_index.py  in place of it: what the router has sent where
    run.py        one run
    outcome.py    what came out of it
    sweep.py      many runs, on all cores
    plan.py       which runs a report has
    report/       tables, files, plots, one HTML page

The index is the project's own: the nodes publish block events as engines do, these become records
of the log, `streams.table.fold.Fold` folds them, and the router asks the kernel behind it. Only the
nodes' caches and the clock are simulated.
"""
