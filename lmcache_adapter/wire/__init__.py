"""What LMCache sends and reads, and its names of storage backends."""
