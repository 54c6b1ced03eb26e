"""Simulated engines: a block cache, its events on the wire, and the process around them."""
