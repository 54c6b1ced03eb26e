"""Prompts, event load, and a router that keeps score."""
