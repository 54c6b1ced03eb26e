"""The HTTP server of every role below its app: what connections may do, and how many there are."""
