"""The command line; `reprise.cli.main` has the group of commands."""

from reprise.cli.main import main

__all__ = ["main"]
