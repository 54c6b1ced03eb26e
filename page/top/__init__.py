"""`reprise top`: the instances of a service, one line each, as any replica's API tells of them.

`fleet` joins the documents of the API, `lines` makes text of that, `watching` asks again and again,
`screen` shows it in a terminal. Nothing here writes anything anywhere.
"""
