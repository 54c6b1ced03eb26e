"""Policies of other routers that nobody should route by, to be compared with: all are by counts.

counts.py   two-tier, loadaware, kvaware, aibrix
table.py    all policies that can be simulated, by name
"""
