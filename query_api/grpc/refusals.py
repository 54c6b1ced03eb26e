"""Why a call was not answered: what the router is told, and under what it is counted."""

import grpc

from query_api.grpc.bounds import GRPC_WRITE_S


class GrpcRefusal(Exception):
    """A call, or a stream, that ends with an error.

    Attributes:
        code: what the router acts on: UNAVAILABLE and RESOURCE_EXHAUSTED have it try another index
            or fall back, the others say that the request is wrong.
        reason: the short name under which it is counted.
        text: what was expected, and what to do.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, text: str) -> None:
        self.code = code
        self.reason = reason
        self.text = text
        super().__init__(f"{reason}: {text}")


def malformed(expected: str) -> GrpcRefusal:
    """A message that is none."""
    return GrpcRefusal(
        grpc.StatusCode.INVALID_ARGUMENT, "malformed", f"Expected {expected}, got something else"
    )


def not_ready() -> GrpcRefusal:
    """An index that has not recovered."""
    return GrpcRefusal(
        grpc.StatusCode.UNAVAILABLE,
        "not_ready",
        "The index is not ready: it has yet to recover its table. GET /ready says when it is",
    )


def too_large(most: int) -> GrpcRefusal:
    """A message with more objects in it than one call may cost."""
    return GrpcRefusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too_large",
        f"Expected hashes packed as i64, or at most {most} bytes of them as text, got more",
    )


def too_many_streams(most: int) -> GrpcRefusal:
    """One more stream than may be open."""
    return GrpcRefusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too_many_streams",
        f"Expected at most {most} open streams, got one more: use one for each gateway",
    )


def not_read() -> GrpcRefusal:
    """A stream whose answers its client does not read."""
    return GrpcRefusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "answer_not_read",
        f"Expected the last answer to be read within {GRPC_WRITE_S:.0f} s, but it was not",
    )


def expired() -> GrpcRefusal:
    """A call whose deadline was over before it was looked at."""
    return GrpcRefusal(
        grpc.StatusCode.DEADLINE_EXCEEDED, "expired", "The deadline was over before the answer"
    )


def not_served(method: str, instead: str) -> GrpcRefusal:
    """A method of a service that is none of ours."""
    text = f"{method} is not served. {instead}"
    return GrpcRefusal(grpc.StatusCode.UNIMPLEMENTED, "not_served", text)


def internal() -> GrpcRefusal:
    """A fault of ours."""
    return GrpcRefusal(
        grpc.StatusCode.INTERNAL, "internal", "The index has failed to answer; its log says why"
    )
