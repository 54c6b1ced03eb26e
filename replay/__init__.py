"""Captures of the log, and what they are replayed into; traces of requests."""
