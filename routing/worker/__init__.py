"""The Faust agent that folds the routing log into a checkpoint."""
