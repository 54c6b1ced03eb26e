"""A real service and simulated engines as processes, under the same requests at the same times."""
