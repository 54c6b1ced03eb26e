"""What outcomes teach of times: pure folds, the same bits on every machine.

regression.py  least squares of three terms that forget
accuracy.py    the last errors, and the 90th percentile
classes.py     of whom something is learnt: a model on a class of instances
prefill.py     how long computing a prompt takes
decode.py      the time between two tokens; how long outputs are
links.py       how fast caches are moved
estimates.py   all of it: what is folded once for each outcome, and what deciders ask
"""
