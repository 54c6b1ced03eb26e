"""What fleets of engines need: computed from measured figures, and tried with simulated publishers.

python -m benchmarks.scaling [--write]      the tables of docs/benchmarks.md
python -m benchmarks.scaling.fleet          publishers on loopback, followed by `reprise up`
"""
