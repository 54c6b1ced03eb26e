"""The routing log in both forms: written, read, recovered."""
