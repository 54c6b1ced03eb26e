"""The prefix index in memory. `open_kernel` gives the fastest kernel that this installation has."""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from schemas.arrays import ArrayPacker, MessageRun, PythonArrayPacker
from streams.bounds import LEFT_OUT_BLOCKS_MAX, WAITING_MAX
from streams.kernel.interface import Kernel
from streams.kernel.reference import ReferenceKernel
from streams.kernel.selection import ChangeSelection, PythonChangeSelection

_native: ModuleType | None
try:
    _native = importlib.import_module("streams.kernel._native")
except ImportError:
    _native = None

__all__ = [
    "Kernel",
    "array_packer",
    "change_selection",
    "message_run",
    "native_audit_queue",
    "native_available",
    "native_boards",
    "native_listener",
    "open_kernel",
    "socket_reader",
]

native_listener: Callable[..., Any] | None = None if _native is None else _native.Listener
"""Makes a `query_api.http.plain_listener.PlainListener`; None without the Rust kernel."""

native_boards: Callable[..., Any] | None = None if _native is None else _native.RouteBoards
"""Makes a `routing.decisions.kernel_boards.RouteBoards`; None without the Rust kernel."""

native_audit_queue: Callable[..., Any] | None = None if _native is None else _native.AuditQueue
"""Makes a `streams.kernel.interface.AuditQueue`; None without the Rust kernel."""

socket_reader: Callable[..., Any] | None = None if _native is None else _native.SocketReader
"""Reads for `bridge.sockets.reader.NativeReader`; None without the Rust kernel."""

message_run: Callable[[Sequence[Sequence[bytes]]], MessageRun] | None = (
    None if _native is None else _native.MessageRun
)
"""Makes a run of the frames of messages, as that reader does; None without the Rust kernel."""


change_selection: Callable[[bytes, bytes], ChangeSelection] = (
    PythonChangeSelection if _native is None else _native.ChangeSelection
)
"""Makes the selection of prefix hashes and of keys, both as (n,) u64 LE."""


def native_available() -> bool:
    """Whether the Rust kernel was built and can be imported."""
    return _native is not None


def open_kernel(
    seed: int,
    *,
    name: str | None = None,
    cleared_at_once: int | None = None,
    waiting_max: int = WAITING_MAX,
    left_out_max: int = LEFT_OUT_BLOCKS_MAX,
) -> Kernel:
    """An empty kernel: the one named (`rust`, `reference`), or the fastest there is.

    Args:
        seed: of the prefix hash, u64.
        name: of a kernel, or None.
        cleared_at_once: entries that a clear of the Rust kernel releases itself; those of a larger
            one are hidden, and released later. None for the kernel's own bound.
        waiting_max: see `WAITING_MAX`.
        left_out_max: see `LEFT_OUT_BLOCKS_MAX`.

    Raises:
        ValueError: no such kernel in this installation.
    """
    if name not in (None, "rust", "reference"):
        raise ValueError(f"Expected kernel `rust` or `reference`, got: {name}")
    if name == "rust" and _native is None:
        raise ValueError("Expected the Rust kernel, but it is not built: run `make install`")
    if name == "reference" or _native is None:
        return ReferenceKernel(seed, waiting_max=waiting_max, left_out_max=left_out_max)
    more = {} if cleared_at_once is None else {"cleared_at_once": cleared_at_once}
    kernel: Kernel = _native.Kernel(
        seed, waiting_max=waiting_max, left_out_max=left_out_max, **more
    )
    return kernel


def array_packer() -> ArrayPacker:
    """The fastest packer of wire arrays that this installation has."""
    packer: ArrayPacker = PythonArrayPacker() if _native is None else _native.ArrayPacker()
    return packer
