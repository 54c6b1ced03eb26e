"""Numbers of things, as people say them."""


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
