"""The embedded service: queries, ingest, recovery."""
