"""Advice that is carried out by LMCache's workers, where that is switched on.

actor.py      the thread that looks, and gives commands
workers.py    who could execute them
commands.py   what the log of commands says of what was done
"""
