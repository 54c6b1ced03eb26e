"""Reading and validating request bodies."""
