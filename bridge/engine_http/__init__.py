"""What engines say of themselves over HTTP: whether, which process and where they are."""
