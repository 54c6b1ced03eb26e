"""The log of answers: what is kept of each, and how it is derived again from the log of records."""
