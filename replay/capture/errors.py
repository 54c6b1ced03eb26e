"""What can be wrong with a capture. All name the file; those about its bytes, where in it."""

from schemas.errors import RepriseError


class CaptureError(RepriseError):
    """Operator action: see the message."""


class CaptureFormatError(CaptureError):
    """The file is no capture, or its header cannot be read: nothing in it can be used."""

    def __init__(self, path: str, offset: int, detail: str) -> None:
        self.offset = offset
        super().__init__(f"Expected a capture, {detail}, at byte {offset} of {path}")


class CaptureVersionError(CaptureError):
    """Operator action: read it with a newer Reprise."""

    def __init__(self, path: str, *, version: int, supported: int) -> None:
        self.version = version
        super().__init__(
            f"Expected a capture of version `{supported}` or older, got `{version}`: {path}."
            " A newer Reprise wrote it; read it with that one"
        )


class CaptureDamagedError(CaptureError):
    """The file is not as it was written from this byte on. What stands before it can be used, and
    `Capture` does.

    Attributes:
        offset: of the block that is damaged, in bytes of the file.
    """

    def __init__(self, path: str, offset: int, detail: str) -> None:
        self.offset = offset
        super().__init__(f"Expected intact blocks, {detail}, at byte {offset} of {path}")
