"""The Rust kernel equals the reference: in every answer, change, count and digest."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.events import encode_events, extra_key
from schemas.identities import ModelContext, waiting_scope
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.changes import Change
from streams.kernel.interface import PublisherId
from streams.table.rows.loader import net
from tests import strategies
from tests.strategies import (
    INSTANCES,
    LORA_NAMES,
    PUBLISHERS,
    SEED,
    SEEDS,
    Apply,
    Clear,
    Load,
    Operation,
    Prompt,
    Register,
    Reload,
    Take,
    Unregister,
    prompt_hashes,
    prompt_prefixes,
    prompt_tokens,
    scope_of,
    u64s,
)

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

BOUNDED = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class Run:
    """One kernel under a list of operations, with the changes it has given so far."""

    def __init__(self, name: str, *, cleared_at_once: int | None = None, seed: int = SEED) -> None:
        self.kernel: Kernel = open_kernel(
            seed, name=name, cleared_at_once=cleared_at_once, waiting_max=4
        )
        self.taken: list[tuple[ModelContext, bytes]] = []

    def do(self, operation: Operation) -> object:
        """What the operation returned."""
        kernel = self.kernel
        match operation:
            case Apply(number, events, after):
                kernel.apply(self.publisher(number), encode_events(events), after)
            case Register(number):
                kernel.register(self.publisher(number), *operation[1:])
            case Clear(number):
                return kernel.clear(self.publisher(number))
            case Unregister(number):
                return kernel.unregister(self.publisher(number))
            case Reload(number):
                if self.taken:
                    kernel.load(*self.taken[number % len(self.taken)])
            case Load(context, changes):
                kernel.load(context, b"".join(map(self.encode, changes)))
            case Take():
                pending, contexts = kernel.pending_changes(), kernel.pending_contexts()
                taken = sorted(kernel.take_changes())
                assert pending == sum(len(changes) for _, changes in taken) // 24
                assert contexts == len(taken)
                assert (kernel.pending_changes(), kernel.pending_contexts()) == (0, 0)
                self.taken += taken
                return taken
        return None

    def publisher(self, number: int) -> PublisherId:
        handle = self.kernel.open_publisher(*PUBLISHERS[number])
        self.kernel.set_domain(handle, int(number == len(PUBLISHERS) - 1))
        return handle

    @staticmethod
    def encode(change: tuple[int, Prompt, int, int, int, int]) -> bytes:
        key, prompt, dp_rank, tier, op, count = change
        return Change(key, len(prompt), dp_rank, tier, op, count).encode()

    def view(self, *, release: bool = True) -> dict[str, object]:
        """All that can be seen of the kernel; blocks and holders only if what was cleared has been
        released.
        """
        while release and self.kernel.release_left(1):
            pass
        stats = self.kernel.stats()
        del stats["memory_bytes"]
        scopes: list[object] = list(self.kernel.scopes())
        if not release:
            del stats["blocks"], stats["holder_sets"]
            scopes = [(view.scope, view.instances) for view in self.kernel.scopes()]
        return {
            "contexts": self.kernel.contexts(),
            "scopes": scopes,
            "counters": self.kernel.counters(),
            "stats": stats,
            "pending": (self.kernel.pending_changes(), self.kernel.pending_contexts()),
        }


SALT = extra_key(["salt"])


def answers(kernel: Kernel, prompts: list[Prompt]) -> Iterator[object]:
    for lora_name in LORA_NAMES:
        scope = scope_of(lora_name)
        yield kernel.knows(scope)
        yield kernel.without_adapter(scope)
        waiting = waiting_scope(scope)
        assert waiting is not None
        yield kernel.knows(waiting)
        for prompt in prompts:
            tokens = prompt_tokens(prompt)
            for keys in ((), (SALT,), (b"", SALT), (SALT, b"", b"x" * 300)):
                yield kernel.query(scope, tokens, keys, None)
            for hashes in (u64s(prompt_prefixes(prompt)), prompt_hashes(prompt, lora_name)):
                yield kernel.query_by_hash(scope, hashes, None)
            for instance in (*INSTANCES, "absent"):
                yield kernel.query(scope, tokens + b"\0\0\0\0", (), instance)


def entries_of(kernel: Kernel) -> list[tuple[ModelContext, list[bytes]]]:
    """Every context's dump as sorted changes."""
    dumps = []
    for view in kernel.contexts():
        dumped = b"".join(kernel.dump(view.context, 3))
        dumps.append((view.context, sorted(dumped[i : i + 24] for i in range(0, len(dumped), 24))))
        assert len(dumped) == 24 * view.entries
    return dumps


def replayed(name: str, rows: list[tuple[ModelContext, bytes]]) -> Kernel:
    """As rows are loaded: contexts of one flush share the keys of objects that have waited."""
    kernel = open_kernel(SEED, name=name)
    for context, changes in rows:
        kernel.load(context, net(changes))
    return kernel


ASKED: list[Prompt] = [(0,), (1, 0), (0, 1, 2), (2, 2, 2, 2), (0, 0, 1, 0, 2), (1, 1, 2, 0, 0)]


@BOUNDED
@given(strategies.operation_lists, st.sampled_from(SEEDS))
def test_both_kernels_agree_after_every_operation(operations: list[Operation], seed: int) -> None:
    reference, rust = Run("reference", seed=seed), Run("rust", seed=seed)
    for operation in [*operations, Take()]:
        assert rust.do(operation) == reference.do(operation)
        assert rust.view() == reference.view()
    assert list(answers(rust.kernel, ASKED)) == list(answers(reference.kernel, ASKED))
    assert entries_of(rust.kernel) == entries_of(reference.kernel)


@BOUNDED
@given(strategies.operation_lists)
def test_what_is_cleared_later_is_hidden_at_once(operations: list[Operation]) -> None:
    reference, rust = Run("reference"), Run("rust", cleared_at_once=0)
    for operation in [*operations, Take()]:
        assert rust.do(operation) == reference.do(operation)
        assert rust.view(release=False) == reference.view(release=False)
        assert list(answers(rust.kernel, ASKED[2:4])) == list(answers(reference.kernel, ASKED[2:4]))
    assert entries_of(rust.kernel) == entries_of(reference.kernel)
    assert rust.view() == reference.view()
    assert list(answers(rust.kernel, ASKED)) == list(answers(reference.kernel, ASKED))


@BOUNDED
@given(strategies.operation_lists)
def test_every_prompt_is_answered_alike_midway(operations: list[Operation]) -> None:
    reference, rust = Run("reference"), Run("rust")
    for operation in operations:
        rust.do(operation)
        reference.do(operation)
        assert list(answers(rust.kernel, ASKED[2:4])) == list(answers(reference.kernel, ASKED[2:4]))


@BOUNDED
@given(strategies.operation_lists)
def test_taken_changes_and_dumps_rebuild_the_same_table(operations: list[Operation]) -> None:
    run = Run("rust")
    for operation in operations:
        # Loads leave no changes, so a table with loads is not the sum of its changes.
        if not isinstance(operation, Load | Reload):
            run.do(operation)
    run.do(Take())
    dumped = [
        (view.context, chunk)
        for view in run.kernel.contexts()
        for chunk in run.kernel.dump(view.context, 2)
    ]
    for name in ("rust", "reference"):
        for rows in (run.taken, run.taken + run.taken[-1:], dumped):
            kernel = replayed(name, rows)
            assert kernel.contexts() == run.kernel.contexts()
            assert entries_of(kernel) == entries_of(run.kernel)
            assert kernel.pending_changes() == 0
