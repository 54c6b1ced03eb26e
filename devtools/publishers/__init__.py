"""Which releases of publishers were tried, and what was decoded: docs/compatibility.md.

    python -m devtools.publishers fetch            fetches released publishers (`make engines`)
    python -m devtools.publishers table --write    tries them, and the captured frames

An engine's publisher is one file of its package that needs no accelerator: `engine` runs it as a
process, with what it imports of the rest of the engine left out.
"""
