"""The composition root: settings, the command line, and the service in one process."""

__version__ = "0.1.0"
