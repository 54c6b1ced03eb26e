"""Which publishers this process follows, and what the log already has of each."""
