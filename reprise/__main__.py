"""`python -m reprise` is `reprise`."""

from reprise.cli.main import main

main()
