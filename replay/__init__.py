"""Engines without a GPU, traffic without users: for the demonstration, tests and benchmarks.

    engine_cache    a paged KV cache as an engine keeps it, pure
    wire            its events as each vLLM release encodes them
    publisher       vLLM's ZeroMQ publisher
    engine          one simulated engine as a process
    life            how long it lives: with its parent, or with who adopts it
    conversations   a seeded source of multi-turn prompts
    load            a fast, deterministic stream of events
    router          asks Reprise, chooses an engine, keeps score
    fleet           the engines of a demonstration, adopted or new
    demo            all of it together

Nothing here is imported by the service; engines speak to it over their wire only.
"""
