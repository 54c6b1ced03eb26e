"""Hostile bytes on every socket and in every topic, each beside a neighbour that behaves well.

What is sent follows from a seed alone, which stands in the text of every failure (`--seed` sends it
again); how much, from `--fuzz-scale`: 1.0 is a million messages, a million requests and 100,000
records of each topic.
"""
