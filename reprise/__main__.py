"""`python -m reprise` is `reprise`."""

from reprise.cli import main

main()
