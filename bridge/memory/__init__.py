"""Segments in shared memory that say what engines' KV caches take: read, compared, told."""
