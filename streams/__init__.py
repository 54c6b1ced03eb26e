"""The write path after the bridge: the log, the kernel, the fold, the table and its recovery."""
