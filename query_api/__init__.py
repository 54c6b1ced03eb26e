"""The read path: Conductor's HTTP API, answered from prefix tables held in memory."""
