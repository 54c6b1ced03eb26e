"""What was measured, on which machine, and how it is printed."""
