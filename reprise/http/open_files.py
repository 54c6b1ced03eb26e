"""The limit of open files, and how many of them clients may take.

Publishers' sockets leave more of them free than clients do: `bridge.sockets.subscriber`.
"""

import contextlib
import os
import resource
from typing import Final, NamedTuple

from schemas.limits import OPEN_FILES_MAX, PUBLISHER_FILES_LEFT_MAX, PUBLISHER_FILES_SHARE

HTTP_FILES_SHARE: Final = 16  # so much of the limit of open files is left to the disks
HTTP_FILES_LEFT_MAX: Final = 512  # of files that are left to the disks, where the limit is high

assert HTTP_FILES_SHARE > PUBLISHER_FILES_SHARE, "clients find files beside all publishers"
assert HTTP_FILES_LEFT_MAX < PUBLISHER_FILES_LEFT_MAX, "clients find files beside all publishers"


class FilesForClients(NamedTuple):
    """What a server may use of the files that are free when it starts.

    Attributes:
        connections: at once; half of what is free.
        descriptor_max: above it, a client's descriptor shows that all but what the disks need is
            being used, whoever uses it: descriptors are numbered from below.
    """

    connections: int
    descriptor_max: int


def raise_open_files_limit() -> None:
    """Lets this process open as many files as it may: a publisher takes about five descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_for_clients() -> FilesForClients:
    """Of the files that are free now; at least one connection."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
    free = max(limit - len(os.listdir("/dev/fd")), 0)
    left = min(limit // HTTP_FILES_SHARE, HTTP_FILES_LEFT_MAX)
    return FilesForClients(max(free // 2, 1), limit - left - 1)
