"""The worker of the distributed form: a Faust app that folds the partitions it is assigned."""
