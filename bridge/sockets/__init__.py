"""ZeroMQ sockets of the followed publishers, and the bounded inbox that they fill."""
