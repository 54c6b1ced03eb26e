"""Whether the processes that write a segment are there.

kvcached names a segment `kvcached_<engine>_<process group>`, where nothing else was asked for, with
`_1` to `_99` behind it where the name was taken, and `_g<n>` for a further pool. Its processes
remove it when they end, but not where they are killed.

A group can be looked for only in the same PID namespace: seen from elsewhere it is not there, or is
another one. So one that is not there proves nothing by itself; one that has been there and is gone
does (`bridge.memory.poller`).
"""

import os
import re
from typing import Final

_NAME: Final = re.compile(r"kvcached_[A-Za-z]+_([1-9][0-9]{0,9})(?:_[0-9]{1,2})?(?:_g[0-9]+)?")
_GROUP_MAX: Final = 2**31 - 1


def group_of(name: str) -> int | None:
    """The process group in a segment's name, or None."""
    found = _NAME.fullmatch(name)
    group = int(found[1]) if found else 0
    return group if 1 < group <= _GROUP_MAX else None


def group_is_there(group: int) -> bool:
    """Whether a process of the group exists, as far as this process sees; it is not touched."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is not ours
    return True
