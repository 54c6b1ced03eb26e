"""One worker of LMCache: what it holds, what is missing, and what is written of it."""
