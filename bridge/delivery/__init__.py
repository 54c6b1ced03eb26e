"""Sending records to Kafka in order, and keeping them on disk while it is away."""
