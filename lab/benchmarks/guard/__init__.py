"""`make bench-check`: has a change made anything dearer?"""
