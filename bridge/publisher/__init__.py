"""From received messages to records: order, gaps, restarts, replay and packing."""
