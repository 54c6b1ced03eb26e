"""Delivers records, in order: to Kafka, with a spool for the time it is away, or to a local log."""
