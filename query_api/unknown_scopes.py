"""What was asked that nobody has: a model, a block size, a salt. And what there is instead.

An unknown scope is an empty answer, no error; so it looks as a prompt does that nobody holds. What
is said beside the answer, in a header, is the first part of the scope's name that differs, and what
there is of it, within the tenant that was asked. The last such questions are kept, for the doctor.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from query_api.ports import View
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope, is_hidden

KNOWN_SCOPES_S: Final = 1.0  # how old what is known may be, where an unknown scope is asked
KNOWN_NAMES_SHOWN_MAX: Final = 8  # models, sizes and so on that are named in their place
UNKNOWN_SCOPES_MAX: Final = 256  # that were asked and are kept for the doctor; the oldest go
UNKNOWN_SCOPES_S: Final = 300.0  # that an unknown scope is kept for the doctor

HEADER: Final = b"reprise-unknown"

TENANT: Final = "tenant_id"
MODEL: Final = "model"
BLOCK_SIZE: Final = "block_size"
SALT: Final = "additional_salt"
LORA: Final = "lora_name"

_PLACES: Final = {TENANT: 0, MODEL: 1, BLOCK_SIZE: 3, SALT: 4, LORA: 2}
"""Of each field in a `PrefixScope`, in the order in which they are looked at."""

_SAFE: Final = "/:@.+~"


class ScopeMismatch(NamedTuple):
    """Why a scope is not known.

    Attributes:
        field: the first part of its name that nobody has with those before it.
        asked: what it is there.
        known: what others have there with those before it; sorted, the first
            KNOWN_NAMES_SHOWN_MAX. None of other tenants are named.
    """

    field: str
    asked: str
    known: tuple[str, ...]

    @property
    def text(self) -> str:
        """As the header has it: `block_size=16; known=32,64`; names are percent-encoded."""
        known = ",".join(quote(one, safe=_SAFE) for one in self.known)
        return f"{self.field}={quote(self.asked, safe=_SAFE)}; known={known}"


class UnknownScope(NamedTuple):
    """A scope that was asked and is not known.

    Attributes:
        times: how often.
        at: when last, Unix seconds.
    """

    scope: PrefixScope
    times: int
    at: float


class UnknownScopes:
    """See the module. Used on one loop; `asked` may be called from any thread.

    Args:
        monotonic: seconds, for how old what is known may be.
        clock: Unix seconds.
    """

    def __init__(
        self,
        view: View,
        *,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._view = view
        self._monotonic = monotonic
        self._clock = clock
        self._known: frozenset[tuple[str, ...]] = frozenset()
        self._read_at = -KNOWN_SCOPES_S
        # With what was not known of each when it was asked last.
        self._asked: dict[PrefixScope, tuple[UnknownScope, str]] = {}

    def note(self, scope: PrefixScope) -> ScopeMismatch | None:
        """A question about the scope found nobody. Cost O(scopes) once in KNOWN_SCOPES_S.

        Returns:
            Why; None where somebody has it after all.
        """
        why = self.why(scope)
        if why is not None:
            before = self._asked.pop(scope, None)
            if len(self._asked) >= UNKNOWN_SCOPES_MAX:
                self._asked.pop(next(iter(self._asked)))
            count = 1 if before is None else before[0].times + 1
            self._asked[scope] = UnknownScope(scope, count, self._clock()), why.field
        return why

    def why(self, scope: PrefixScope) -> ScopeMismatch | None:
        """What of the scope's name nobody has, as of at most KNOWN_SCOPES_S ago."""
        now = self._monotonic()
        if now >= self._read_at + KNOWN_SCOPES_S:
            self._known, self._read_at = self._scopes(), now
        wanted = _parts(scope)
        candidates: Iterable[tuple[str, ...]] = self._known
        for depth, (field, name) in enumerate(zip(_PLACES, wanted, strict=True)):
            fitting = [one for one in candidates if one[depth] == name]
            if not fitting:
                known: set[str] = set()
                if depth:  # other tenants are no business of the one that asks
                    known = {one[depth] for one in candidates}
                return ScopeMismatch(field, name, _shown(known))
            candidates = fitting
        return None

    def asked(self, admits: Callable[[str], bool]) -> list[tuple[UnknownScope, ScopeMismatch]]:
        """Those of the last UNKNOWN_SCOPES_S that are still unknown by the same of their name, the
        latest first: a model that was unregistered since was registered when it was asked for.
        """
        since = self._clock() - UNKNOWN_SCOPES_S
        found = []
        for one, field in reversed(list(self._asked.values())):
            if one.at >= since and admits(one.scope.tenant_id):
                why = self.why(one.scope)
                if why is not None and why.field == field:
                    found.append((one, why))
        return found

    def _scopes(self) -> frozenset[tuple[str, ...]]:
        """Of those that are registered, and of adapters that were announced."""
        registered = (
            PrefixScope(
                one.tenant_id,
                one.model_name,
                one.lora_name,
                one.block_size,
                one.additional_salt,
            )
            for one in self._view.registered()
        )
        announced = (PrefixScope(*one.scope) for one in self._view.kernel.scopes())
        shown = (one for one in (*registered, *announced) if not is_hidden(one.lora_name))
        return frozenset(map(_parts, shown))


def _parts(scope: PrefixScope) -> tuple[str, ...]:
    return tuple(str(scope[place]) for place in _PLACES.values())


def _shown(names: set[str]) -> tuple[str, ...]:
    order = sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))
    return tuple(order[:KNOWN_NAMES_SHOWN_MAX])
