"""A standing condition while outcomes contradict what is answered: the diagnosis of a silent zero.

Thread `doctor`: every OUTCOMES_LOOK_S it looks at the latest outcomes of each instance. Where
enough of them say that it found much more, or much less, in its cache than it was said to hold, the
service has the condition `outcomes`, which names the likeliest cause. It ends by itself: what is
judged by are the latest outcomes, so as many good ones as it takes to judge are enough, or none for
a while.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from doctor.document import Code
from doctor.examination import examine, served_by
from doctor.served_requests import is_contradicted, likeliest_cause
from query_api.ports import View
from routing.decisions.router import Router
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Part
from schemas.limits import SHUTDOWN_S, UNREACHED_NAMED_MAX

OUTCOMES_LOOK_S: Final = 5.0  # how often it is looked whether outcomes contradict: `outcomes`

logger = logging.getLogger(__name__)


class OutcomeWatch:
    """See the module.

    Args:
        on_fault: counts an unexpected error; the next look goes on.
        clock: Unix seconds.
    """

    def __init__(
        self,
        view: View,
        router: Router,
        conditions: Conditions,
        *,
        on_fault: Callable[[], None],
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._on_fault = on_fault
        self._view = view
        self._router = router
        self._conditions = conditions
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doctor", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, if it was started; within a bound."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_S)

    def _run(self) -> None:
        while not self._stop.wait(OUTCOMES_LOOK_S):
            try:
                self.look()
            except Exception:
                self._on_fault()
                logger.exception(
                    "Unexpected error while the doctor looked at outcomes; it looks again"
                )

    def look(self) -> None:
        """Sets or clears the condition. Cost O(rows of promises of the last minutes); where an
        instance is contradicted, as `examine`.
        """
        now = self._clock()
        if not any(one.contradict for one in served_by(self._router, now).values()):
            self._conditions.clear(Part.OUTCOMES)
            return
        patients = examine(self._view, self._router, now).patients
        found = [one for one in patients if is_contradicted(one)]
        if not found:  # they are not registered any more
            self._conditions.clear(Part.OUTCOMES)
            return
        named = []
        for patient in found[:UNREACHED_NAMED_MAX]:
            code, cause = likeliest_cause(patient)
            tenant_id, model_name, _, _, instance_id = patient.stream
            named.append(f"{tenant_id}/{instance_id} ({model_name}) {_WORDS[code]}: {cause}")
        more = "; ..." if len(found) > UNREACHED_NAMED_MAX else ""
        self._conditions.set(
            Part.OUTCOMES,
            likeliest_cause(found[0])[0].value,
            f"outcomes contradict what is said of {len(found)} of {len(patients)} instances:"
            f" {'; '.join(named)}{more}. `reprise doctor` says what to do",
        )


_WORDS: Final = {
    Code.MATCHES_NOTHING: "is said to hold nothing, and holds much",
    Code.MATCHES_LESS: "holds more than it is said to",
    Code.MATCHES_MORE: "holds less than it is said to",
}
