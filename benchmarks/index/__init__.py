"""The kernel alone."""
