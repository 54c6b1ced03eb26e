"""What LMCache's controller answers over HTTP: `/lookup`, and two views of its workers."""
