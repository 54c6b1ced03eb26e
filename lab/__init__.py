"""Engines without a GPU, traffic without users: for the demonstration, tests and benchmarks; and
traces of requests, run under other policies.

    engines/    a block cache, its events as each vLLM release encodes them, the process around them
    traffic/    seeded prompts, a fast stream of events, a router that asks Reprise and keeps score
    demo/       all of it together, beside `reprise up --demo` or in docker compose
    whatif/     a trace of requests under other routing policies, through the real fold and kernel

Nothing here is imported by the service; engines speak to it over their wire only. What-if imports
the fold and the kernel.
"""
