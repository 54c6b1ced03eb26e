"""The composition root: command line, settings, roles, the embedded service, metrics."""

__version__ = "0.2.0"
