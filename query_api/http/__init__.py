"""The HTTP API: routes, wire forms, errors, health, metrics."""
