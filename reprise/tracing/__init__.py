"""OpenTelemetry, where it is switched on. The only room that imports opentelemetry.

    settings.py   what the environment says
    opening.py    a role's tracing, on or off
    tracer.py     spans, as `schemas.tracing` has them
    export.py     the queue before the collector

The last two are imported where tracing is on: its packages are an extra.
"""
