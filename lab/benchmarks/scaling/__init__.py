"""What fleets of engines need: computed from measured figures, and tried with simulated publishers.

python -m lab.benchmarks.scaling [--write]      the tables of docs/benchmarks.md
python -m lab.benchmarks.scaling.fleet          publishers on loopback, followed by `reprise up`
"""
