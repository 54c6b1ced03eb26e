"""A router's guess of who holds a prefix: a radix tree of the prompts that it has sent to whom.

Modelled on the cache-aware tree of SGLang's router, as gateways use it that follow no events: one
tree for each model, whose edges are runs of pages of tokens (16, an engine's block; prompts are cut
to whole pages). A node has, for each worker, when a prompt through it was last sent there. Each
worker's part is bounded: once it is larger than that, its leaves go, the least recently used first.

It knows neither what the worker's cache has evicted, nor what other gateways have sent there, nor
restarts. Here are none of the router's locks, and its nodes are Python objects: so the shape of the
cost is the router's, the constant is not.
"""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Final

PAGE_TOKENS: Final = 16

Page = tuple[int, ...]


class _Node:
    """The pages between two branches.

    Attributes:
        pages: on the edge to this node; of the root none.
        children: by the first page of each.
        last_used: by worker, when a prompt through here was last sent to it.
    """

    __slots__ = ("children", "last_used", "pages", "parent")

    def __init__(self, pages: list[Page], parent: "_Node | None") -> None:
        self.pages = pages
        self.parent = parent
        self.children: dict[Page, _Node] = {}
        self.last_used: dict[str, int] = {}


class ApproximateTree:
    """The tree of one model. Not for use from several threads at once."""

    def __init__(self, workers: Sequence[str], *, pages_max: int) -> None:
        """`pages_max`: of each worker, from when on its least recently used leaves go."""
        if not workers or pages_max < 1:
            raise ValueError(f"Expected workers and room for pages, got: {workers}, {pages_max}")
        self.pages = dict.fromkeys(workers, 0)
        self._pages_max = pages_max
        self._root = _Node([], None)
        self._clock = count()

    def match(self, tokens: Sequence[int]) -> dict[str, int]:
        """How many leading tokens each worker is thought to hold; who has none is left out.

        O(tokens), and for each node on the way O(its workers).
        """
        pages = pages_of(tokens)
        node, at = self._root, 0
        found: dict[str, int] = {}
        while at < len(pages):
            child = node.children.get(pages[at])
            if child is None:
                break
            same = _common(child.pages, pages, at)
            at += same
            for worker in child.last_used:
                found[worker] = at * PAGE_TOKENS
            if same < len(child.pages):
                break
            node = child
        return found

    def insert(self, tokens: Sequence[int], worker: str) -> None:
        """A prompt was sent to a worker; what that has too much of goes."""
        pages = pages_of(tokens)
        now = next(self._clock)
        node, at = self._root, 0
        while at < len(pages):
            child = node.children.get(pages[at])
            if child is None:
                child = _Node(list(pages[at:]), node)
                node.children[pages[at]] = child
                at = len(pages)
            else:
                same = _common(child.pages, pages, at)
                if same < len(child.pages):
                    child = _split(node, child, same)
                at += same
            if worker not in child.last_used:
                self.pages[worker] += len(child.pages)
            child.last_used[worker] = now
            node = child
        if self.pages[worker] > self._pages_max:
            self._evict(worker)

    def _evict(self, worker: str) -> None:
        """O(nodes), as in the router, which does it beside its requests every so often."""
        number = count()
        leaves = [
            (node.last_used[worker], next(number), node)
            for node in self._nodes()
            if _is_leaf(node, worker)
        ]
        heapq.heapify(leaves)
        # Some more than must be: the next prompt would have all nodes looked at again.
        wanted = self._pages_max * 9 // 10
        while leaves and self.pages[worker] > wanted:
            _, _, node = heapq.heappop(leaves)
            del node.last_used[worker]
            self.pages[worker] -= len(node.pages)
            parent = node.parent
            assert parent is not None
            if not node.last_used and not node.children:
                del parent.children[node.pages[0]]
            if parent.parent is not None and _is_leaf(parent, worker):
                heapq.heappush(leaves, (parent.last_used[worker], next(number), parent))

    def _nodes(self) -> list[_Node]:
        found = list(self._root.children.values())
        for node in found:
            found.extend(node.children.values())
        return found


def pages_of(tokens: Sequence[int]) -> list[Page]:
    """The whole pages."""
    whole = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
    return [tuple(tokens[at : at + PAGE_TOKENS]) for at in range(0, whole, PAGE_TOKENS)]


def _common(edge: list[Page], pages: list[Page], at: int) -> int:
    """How many pages of the edge the prompt has from there on."""
    most = min(len(edge), len(pages) - at)
    if edge[:most] == pages[at : at + most]:
        return most
    return next(place for place in range(most) if edge[place] != pages[at + place])


def _split(parent: _Node, child: _Node, pages: int) -> _Node:
    """Puts a node after the first pages of an edge; returns it."""
    upper = _Node(child.pages[:pages], parent)
    upper.last_used = dict(child.last_used)
    parent.children[upper.pages[0]] = upper
    child.pages = child.pages[pages:]
    child.parent = upper
    upper.children[child.pages[0]] = child
    return upper


def _is_leaf(node: _Node, worker: str) -> bool:
    """Whether the worker has the node and nothing below it."""
    return worker in node.last_used and not any(
        worker in child.last_used for child in node.children.values()
    )
