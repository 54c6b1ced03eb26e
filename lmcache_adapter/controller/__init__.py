"""All workers of LMCache, and what is answered to each of their messages."""
