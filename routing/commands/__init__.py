"""What the command line shows of routing, and its options."""
