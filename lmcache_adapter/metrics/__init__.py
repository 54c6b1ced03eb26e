"""Metrics of LMCache's workers, of commands to them, and of acting on advice."""
