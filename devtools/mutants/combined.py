"""All mutants of a Rust file in one source: which one is in force is chosen when it runs.

To build a mutant takes longer than to try it, and all of them are built as one:

    a < b       becomes    (if is(7) { a == b } else if is(8) { a > b } else { a < b })

Where mutants stand within each other, each is of the source as it is: so the text grows with the
depth only. A mutant that another shape would need is left to be built alone: one in a constant, in
a chain of `let`, or one that does not compile.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import tree_sitter
import tree_sitter_rust

RUNTIME: Final = Path(__file__).with_name("mutant_choice.rs")
"""What the crate of the mutants has at its end: `is(number)`, see there."""
CHOSEN, REACHED = "REPRISE_MUTANT", "REPRISE_MUTANTS_REACHED"
"""Variables of the environment: the mutant's number; the file that gets the numbers of those that
are reached. As in the runtime."""

_IS: Final = "crate::mutant_choice::is"
_WRAPPED: Final = (
    "binary_expression",
    "compound_assignment_expr",
    "unary_expression",
    "struct_expression",
)
_MARK: Final = re.compile(rb"/\*<(m|c|/m|/c) ([0-9,]*)>\*/")


class _Choice(NamedTuple):
    """What stands between two bytes, or one of the alternatives, by mutants' numbers."""

    start: int
    end: int
    alternatives: Mapping[int, bytes]


class _Insertion(NamedTuple):
    """What is put before a byte, and up to where the compiler may say something of it."""

    at: int
    end: int
    number: int
    text: bytes


class CombinedSource(NamedTuple):
    """A source with mutants, and the numbers of those that it has."""

    source: str
    numbers: list[int]

    def blamed(self, places: Iterable[int]) -> set[int]:
        """Of which mutants what the compiler says is said: as few as can be; maybe none.

        Args:
            places: of one message, as bytes of the source.
        """
        blamed: set[int] = set()
        for place in places:
            mutant, choice = _around(self.source.encode(), place)
            if mutant:
                return mutant
            blamed = blamed or choice
        return blamed

    def within(self, place: int) -> set[int]:
        """The mutant in whose own text a byte of the source is, if it is in one."""
        return _around(self.source.encode(), place)[0]


def combined(source: str, mutants: Mapping[int, Mapping[str, Any]]) -> CombinedSource:
    """The source with those of the mutants that can be chosen when it runs.

    Args:
        source: of a file.
        mutants: by number, as `cargo mutants --list --json` has them.
    """
    text = source.encode()
    tree = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language())).parse(text)
    starts = _line_starts(source)
    choices: dict[tuple[int, int], dict[int, bytes]] = {}
    insertions: list[_Insertion] = []
    for number, mutant in mutants.items():
        start, end = (starts(mutant["span"][side]) for side in ("start", "end"))
        site = _site(tree.root_node, text, (start, end), number, mutant)
        if isinstance(site, _Insertion):
            insertions.append(site)
        elif site is not None:
            choices.setdefault((site.start, site.end), {}).update(site.alternatives)
    written = _write(
        text,
        [_Choice(*span, alternatives) for span, alternatives in choices.items()],
        insertions,
    )
    numbers = [one.number for one in insertions]
    numbers += [number for alternatives in choices.values() for number in alternatives]
    return CombinedSource(written.decode(), sorted(numbers))


def _line_starts(source: str) -> Any:
    """A function from a line and a column, which counts characters, to a byte."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))

    def byte_of(place: Mapping[str, int]) -> int:
        before = lines[place["line"] - 1][: place["column"] - 1]
        return starts[place["line"] - 1] + len(before.encode())

    return byte_of


def _site(
    root: tree_sitter.Node,
    text: bytes,
    span: tuple[int, int],
    number: int,
    mutant: Mapping[str, Any],
) -> _Choice | _Insertion | None:
    start, end = span
    replacement = str(mutant["replacement"]).encode()
    genre = mutant["genre"]
    if genre == "FnValue":
        # One `impl Trait` is one type: what is put in its place is another.
        if "impl " in mutant["function"]["return_type"]:
            return None
        return _Insertion(start, end, number, b"if %s { return %s; }" % (_is(number), replacement))
    node = root.descendant_for_byte_range(start, end)
    if genre == "MatchArm":
        return _of_arm(_up(node, ("match_arm",)), number)
    if genre == "MatchArmGuard":
        return _Choice(start, end, {number: replacement})
    whole = _up(node, _WRAPPED)
    if whole is None:
        return None
    mutated = text[whole.start_byte : start] + replacement + text[end : whole.end_byte]
    return _Choice(whole.start_byte, whole.end_byte, {number: mutated})


def _of_arm(arm: tree_sitter.Node | None, number: int) -> _Choice | _Insertion | None:
    """An arm that is dropped is one whose guard says no."""
    pattern = arm and arm.child_by_field_name("pattern")
    if pattern is None:
        return None
    guard = pattern.child_by_field_name("condition")
    if guard is None:
        at = pattern.end_byte
        return _Insertion(at, at, number, b" if !%s" % _is(number))
    return _Choice(guard.start_byte, guard.end_byte, {number: b"false"})


def _up(node: tree_sitter.Node | None, kinds: Collection[str]) -> tree_sitter.Node | None:
    """The node, or the one next above it, of these kinds; none where a macro, say, is first."""
    while node is not None and node.type not in kinds:
        if node.type in ("token_tree", "block", "let_chain", "function_item"):
            return None
        node = node.parent
    return node


def _is(number: int) -> bytes:
    return f"{_IS}({number})".encode()


def _write(text: bytes, choices: Sequence[_Choice], insertions: Sequence[_Insertion]) -> bytes:
    """The text with all of them. Of those at one place what is put before comes first, then the
    outermost.
    """
    places: list[_Choice | _Insertion] = sorted(
        [*insertions, *choices],
        key=lambda one: (
            (one.at, 0, one.number) if isinstance(one, _Insertion) else (one.start, 1, -one.end)
        ),
    )
    out: list[bytes] = []
    behind: list[tuple[int, bytes]] = []  # ends of the choices that are open
    at = 0

    def go_to(place: int) -> None:
        nonlocal at
        while behind and behind[-1][0] <= place:
            end, closing = behind.pop()
            out.append(text[at:end] + closing)
            at = end
        out.append(text[at:place])
        at = place

    for one in places:
        if isinstance(one, _Insertion):
            go_to(one.at)
            out.append(b"/*<c %d>*/" % one.number + _marked("m", str(one.number), one.text))
            behind.append((one.end, b"/*</c >*/"))
            continue
        go_to(one.start)
        names = ",".join(map(str, one.alternatives))
        parts = [
            b"if %s { %s }" % (_is(number), _marked("m", str(number), mutated))
            for number, mutated in one.alternatives.items()
        ]
        out.append(b"/*<c %s>*/(" % names.encode() + b" else ".join(parts) + b" else { ")
        behind.append((one.end, b" })/*</c >*/"))
    go_to(len(text))
    return b"".join(out)


def _marked(kind: str, names: str, text: bytes) -> bytes:
    return f"/*<{kind} {names}>*/".encode() + text + f"/*</{kind} >*/".encode()


def _around(text: bytes, place: int) -> tuple[set[int], set[int]]:
    """The mutant around a byte, and the mutants of the innermost choice around it."""
    open_marks: list[tuple[str, set[int]]] = []
    for mark in _MARK.finditer(text):
        if mark.start() >= place:
            break
        kind = mark[1].decode()
        if kind.startswith("/"):
            open_marks.pop()
        else:
            open_marks.append((kind, {int(number) for number in mark[2].split(b",")}))
    mutant = open_marks[-1][1] if open_marks and open_marks[-1][0] == "m" else set()
    choice = next((numbers for kind, numbers in reversed(open_marks) if kind == "c"), set())
    return mutant, choice
