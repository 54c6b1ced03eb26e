"""Routing policies: which instance gets a request, from what the index and the loads say.

    interface.py   what a policy is asked, and what it answers
    costs.py       how long a prefill, a load from a slower tier and a fetch take
    ranking.py     order, ties, and who is overloaded
    load.py        policies that look at load alone, or at nothing
    prefix.py      policies that look at the cached prefix: longest-prefix, weighted
    ttft.py        policies by seconds: algorithm-1, least-delay, wait-and-work
    inflight.py    policies that count what is in flight: blocks, lmetric, sticky
    hot_classes.py which prompts that begin alike come too often: a fold of decisions
    decode_choice.py  which instance decodes
    refusal.py     whether a request is refused because its objectives would not be met
    chunk_plan.py  a very long prompt on several instances
    estimates/     what outcomes teach of times: folds of outcomes
    table.py       all of them by name, with their parameters
    advice.py      which hot prefixes should be copied to another instance, or pinned
    observed/      what decisions and their outcomes show

All are pure functions: no clock, no I/O, no randomness. The same request, candidates and parameters
give the same order on every machine.
"""
