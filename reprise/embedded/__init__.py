"""The service in one process."""
