"""Engines, traffic and a router together, for `reprise up --demo` and docker compose."""
