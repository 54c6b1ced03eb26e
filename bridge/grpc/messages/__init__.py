"""Messages of `proto/`, written by `python -m devtools.protos`."""
