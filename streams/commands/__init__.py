"""Commands to LMCache's workers, and what became of them: the fold of their log."""
