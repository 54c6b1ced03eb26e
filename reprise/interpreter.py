"""How Python runs the threads of a service: so that none of them waits long for the others.

A full garbage collection looks at all objects there are, with every other thread waiting: 30 to
80 ms for the modules of a service alone, which never go away. They are set apart from what is
looked at. And a thread that wants the interpreter while another one computes gets it after a
switch interval, 5 ms as Python has it; an event passes three threads on its way to an answer.
"""

import gc
import sys
import threading
from typing import Final

SWITCH_INTERVAL_S: Final = 0.001  # a thread that waits for the interpreter gets it after that
GC_AFTER_OBJECTS: Final = 10_000  # new ones; most are gone by then without a collection
GC_FREEZE_S: Final = 5.0  # after the start; what there is then stays


def tune_interpreter() -> None:
    """For this process, once, as its service starts."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_AFTER_OBJECTS, *gc.get_threshold()[1:])
    _freeze(2)
    started = threading.Timer(GC_FREEZE_S, _freeze, (1,))
    started.daemon = True
    started.start()


def _freeze(generation: int) -> None:
    """What there is now is not looked at again, but garbage up to that generation is collected. A
    full collection would hold up the clients that came since the start, for 170 ms; so garbage of
    these seconds that is old by then stays.
    """
    gc.collect(generation)
    gc.freeze()
