"""The three sockets that workers of LMCache connect to."""
