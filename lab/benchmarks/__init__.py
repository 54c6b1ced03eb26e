"""What Reprise costs: `make bench`, or `python -m lab.benchmarks`; see `docs/benchmarks.md`.

Each measurement runs in a fresh process (`worker`), on data made from a seed; whatever it measures
over a socket is a real `reprise up` with the publishers in another process. The other cores of the
machine may be busy with something else: the figures to trust are those per CPU-second and the
ratios within one run.
"""
