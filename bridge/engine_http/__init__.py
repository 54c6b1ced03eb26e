"""What an engine's HTTP server says of it: that it is there, which process it is, where it publishes."""
