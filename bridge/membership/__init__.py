"""Which publishers this bridge follows, and what the log already has of each."""
