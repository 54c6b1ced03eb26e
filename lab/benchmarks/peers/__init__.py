"""What others have built for the same job, measured beside us in one run."""
