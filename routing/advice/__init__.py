"""What is advised about prefixes that are asked for often, and what holds acting on it back."""
