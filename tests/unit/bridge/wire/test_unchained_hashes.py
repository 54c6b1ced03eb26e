"""SGLang up to 0.5.5 names a page by the hash of its tokens alone: what of that can be found.

The radix tree here is as small as it can be: it says what the released ones say of their pages, and
nothing else of them.
"""

from collections.abc import Iterator

import msgspec
import pytest

from bridge.wire import open_source
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.events import encode_events
from schemas.identities import PrefixScope, StreamKey
from schemas.registration import PublisherKind
from streams.kernel import Kernel, array_packer, open_kernel
from tests.unit.bridge.messages import registration

PAGE = 4
STREAM = StreamKey("default", "m", PAGE, "", "w-1")
SCOPE = PrefixScope("default", "m", "", PAGE, "")

Page = tuple[int, ...]

A, B, C, D = ((n, n, n, n) for n in (1, 2, 3, 4))


class Node:
    def __init__(self, pages: list[Page], parent: "Node | None" = None) -> None:
        self.pages = pages
        self.parent = parent
        self.children: dict[Page, Node] = {}


class Cache:
    """An engine's radix tree of pages.

    Args:
        says_parents: whether a chain names the last page of what it hangs on (up to 0.5.0), an
            empty one at the root; else none does (0.5.1 to 0.5.5).
    """

    def __init__(self, *, says_parents: bool) -> None:
        self._says_parents = says_parents
        self._root = Node([])
        self.events: list[list[object]] = []

    def insert(self, *pages: Page) -> None:
        node, left = self._root, list(pages)
        while left and left[0] in node.children:
            child = node.children[left[0]]
            common = 0
            while common < min(len(child.pages), len(left)) and child.pages[common] == left[common]:
                common += 1
            if common < len(child.pages):
                child = self._split(child, common)
            node, left = child, left[common:]
        if left:
            self._add(node, left)

    def evict(self, *pages: Page) -> None:
        """The last node on this path."""
        node, left = self._root, list(pages)
        while left:
            node = node.children[left[0]]
            left = left[len(node.pages) :]
        assert node.parent is not None
        del node.parent.children[node.pages[0]]
        self._say_removed(node)

    def prefixes(self) -> set[tuple[Page, ...]]:
        """All that is cached, each page with what is before it."""

        def below(node: Node, path: tuple[Page, ...]) -> Iterator[tuple[Page, ...]]:
            for page in node.pages:
                path = (*path, page)
                yield path
            for child in node.children.values():
                yield from below(child, path)

        return set(below(self._root, ()))

    def _add(self, parent: Node, pages: list[Page]) -> None:
        node = parent.children[pages[0]] = Node(pages, parent)
        self._say_stored(node)

    def _split(self, child: Node, at: int) -> Node:
        assert child.parent is not None
        self._say_removed(child)
        upper = Node(child.pages[:at], child.parent)
        child.parent.children[child.pages[0]] = upper
        child.pages, child.parent = child.pages[at:], upper
        upper.children[child.pages[0]] = child
        self._say_stored(upper)
        self._say_stored(child)
        return upper

    def _say_stored(self, node: Node) -> None:
        before: int | None = None
        if self._says_parents and node.parent is not None:
            before = hash(node.parent.pages[-1]) if node.parent.pages else hash(())
        for page in node.pages:
            self.events.append(["BlockStored", [hash(page)], before, list(page), PAGE, None])
            before = hash(page)

    def _say_removed(self, node: Node) -> None:
        self.events += [["BlockRemoved", [hash(page)]] for page in node.pages]


@pytest.fixture(params=["python", "kernel"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


def index_of(cache: Cache, packer: ArrayPacker) -> Kernel:
    source = open_source(registration(kind=PublisherKind("SGLang")), packer)
    payload = msgspec.msgpack.encode([1.5, cache.events, 0])
    batch = source.decode([b"", bytes(8), payload])
    assert batch.dropped == []
    kernel = open_kernel(1337)
    publisher = kernel.open_publisher(STREAM, 0)
    kernel.register(publisher, "", True)
    kernel.apply(publisher, encode_events(batch.events), -1)
    return kernel


def found(kernel: Kernel, *prompt: Page) -> int:
    """How many pages of it."""
    tokens = b"".join(token.to_bytes(4, "little") for page in prompt for token in page)
    [match] = kernel.query(SCOPE, tokens, (), None)
    return match.longest // PAGE


def test_the_hash_of_no_tokens_is_that_of_every_interpreter() -> None:
    assert hash(()) == 5740354900026072187


def test_pages_below_others_are_found_where_the_parent_is_named(packer: ArrayPacker) -> None:
    """Up to 0.5.0, as long as no page is in two places."""
    cache = Cache(says_parents=True)
    cache.insert(A, B)
    cache.insert(A, B, C)
    cache.insert(A, D)
    index = index_of(cache, packer)
    assert [found(index, *path) for path in ((A,), (A, B), (A, B, C), (A, D))] == [1, 2, 3, 2]
    cache.evict(A, B, C)
    assert found(index_of(cache, packer), A, B, C) == 2


@pytest.mark.parametrize("says_parents", [True, False])
def test_pages_that_came_together_are_found(packer: ArrayPacker, says_parents: bool) -> None:
    cache = Cache(says_parents=says_parents)
    cache.insert(A, B, C)
    assert found(index_of(cache, packer), A, B, C) == 3


def test_where_the_parent_is_not_named_two_caches_send_the_same() -> None:
    """0.5.1 to 0.5.5. So whatever finds D behind A in the one finds it in the other, too, where it
    is not, and misses it at the beginning of a prompt, where it is.
    """
    deep, flat = Cache(says_parents=False), Cache(says_parents=False)
    for cache in (deep, flat):
        cache.insert(A, B)
        cache.insert(A, B, C)
    deep.insert(A, B, C, D)
    flat.insert(D)
    assert deep.events == flat.events
    assert deep.prefixes() != flat.prefixes()
    assert (A, B, C, D) in deep.prefixes() - flat.prefixes()
    assert (D,) in flat.prefixes() - deep.prefixes()


def test_where_a_page_is_in_two_places_a_removal_of_either_says_the_same() -> None:
    """The same, also where parents are named."""
    caches = []
    for gone in (A, C):
        cache = Cache(says_parents=True)
        for first in (A, C):
            cache.insert(first)
            cache.insert(first, B)
        cache.evict(gone, B)
        caches.append(cache)
    one, other = caches
    assert one.events == other.events
    assert one.prefixes() != other.prefixes()


def test_what_is_not_named_is_taken_for_the_first_of_a_prompt(packer: ArrayPacker) -> None:
    cache = Cache(says_parents=False)
    cache.insert(A)
    cache.insert(A, D)
    index = index_of(cache, packer)
    assert (found(index, A, D), found(index, D)) == (1, 1)
