"""The fold of the routing log: bookings, failures, expectations, and its checkpoint."""
