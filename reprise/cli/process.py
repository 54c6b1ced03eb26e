"""What each command that runs a service does first, of the whole process."""

import faulthandler

from console.terminal import start_logging
from reprise.interpreter import tune_interpreter
from reprise.memory import return_memory


def begin_service(log_level: str) -> None:
    """Logs of this level and above go to standard error; memory is given back, and threads wait
    little for each other. Once in a process.
    """
    faulthandler.enable()  # a crash in native code says where, on standard error
    start_logging(log_level)
    return_memory()
    tune_interpreter()
