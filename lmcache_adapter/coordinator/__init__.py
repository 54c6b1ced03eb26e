"""LMCache's coordinator, to which servers of its multi-process mode register and push events.

    wire.py         bodies of its HTTP routes, and their errors
    members.py      who has registered, and is there
    directory.py    which objects are where, on disk: what one run tells the next
    service.py      all of these over one log
    app.py          its HTTP routes

What a batch means is said of the topic (`lmcache_adapter.topic.servers`): the same batches come by
either way.
"""
