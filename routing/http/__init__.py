"""The routes of routing: what a client asks, what it reports, and what is known of it.

    requests.py   bodies, checked
    documents.py  answers
    endpoint.py   the hot routes: `/route`, `/feedback`, `/load`
    routes.py     their declarations, and the views

What is decided, and how, is `routing.decisions`.
"""
