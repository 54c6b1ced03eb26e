"""Dynamo's select service over the router: its bodies, its answers, its catalogue of workers.

bodies.py     what is asked, checked, as a request of the router
workers.py    the catalogue, which is the registrations
documents.py  what is answered
routes.py     the routes

A worker is an instance whose name is a number, a routing group is a tenant, a reservation is a
decision and is named by its request.
"""
