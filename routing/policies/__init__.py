"""Routing policies with their costs, and one decision by them. Pure."""
