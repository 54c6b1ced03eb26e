"""An OpenAI-compatible endpoint in front of the engines.

    settings.py    where it listens, and for which engines
    endpoint.py    the ASGI application: paths, keys, bodies, errors
    paths.py       which paths are passed on to engines
    requests.py    what of a client's request is read; all else is passed on as it came
    exchange.py    one request: engines are tried until one answers, and its answer is passed on
    outcome.py     what is told of an answer while it comes
    picker/        the same decisions for proxies that ask where a request goes: `--ext-proc`
    events.py      streams of events: what an engine says of tokens, and what nobody asked for
    usage.py       what an engine says of tokens
    pairs.py       bodies for two engines, of which one computes the prompt
    placement.py   which engine gets a request: by the index, or by load where the index has no say
    prompts.py     token ids of a request, or the reason why there are none
    responses.py   which engine keeps which response
    cache_reports.py  which engines say what they found in their caches
    fleet.py       which engines there are for a model
    names.py       what engines call what they serve; catalog.py asks them
    upstream.py    HTTP to the engines; connections.py each has one answer to a request
    enrollment.py  engines that are named by address alone: they are asked what they are
    gateway.py     all of it; feature.py, room.py, metrics.py

A request never fails because of Reprise: where the index is ill, or does not know the tokens, the
request goes to the engine that has least to do.
"""
