"""Versions that agree, and wheels that install where no Rust is: `python -m devtools.release`."""
