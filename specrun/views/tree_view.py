"""Token trees in the terminal: the tree of a pass, and a static tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from specrun.engine.statistics import Pass
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT

_MAX_NODES = 64  # nodes of a tree that is drawn node by node in the terminal
_MAX_WIDTH = 100  # characters of a line
_BAR_WIDTH = 50  # characters of the bar of the widest level
_CELL = 5  # characters of a node: the branch that leads to it, and two digits
_FIRST_OF_ONE, _FIRST, _NEXT, _LAST = "\u2500\u2500\u2500", "\u2500\u252c\u2500", " \u251c\u2500", " \u2514\u2500"
_PAST, _NOTHING = " \u2502 ", "   "
_ASCII = str.maketrans({"\u2500": "-", "\u252c": "+", "\u2502": "|", "\u251c": "+", "\u2514": "`", "\u2588": "#"})


def caption(shape: TreeShape, acceptance: Sequence[float]) -> str:
    """The size of the tree, and the tokens that a pass over it is expected to commit."""
    nodes = f"{shape.n_nodes} node{'' if shape.n_nodes == 1 else 's'}"
    leaves = f"{shape.n_leaves} {'leaf' if shape.n_leaves == 1 else 'leaves'}"
    return f"{nodes}, {shape.depth} deep, {leaves}, {shape.expected(acceptance):.2f} tokens a pass expected"


class ShapeView:
    """Draws a tree from left to right with the chance of every node in percent, at most 100 columns wide.

    A tree that is too large for that is drawn as a bar for each level. Without Unicode the lines are plain ASCII.
    """

    def __init__(self, shape: TreeShape, acceptance: Sequence[float]) -> None:
        self._shape = shape
        self._acceptance = acceptance

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _MAX_WIDTH)
        drawn = self._shape.n_nodes <= _MAX_NODES and _CELL * self._shape.depth + 1 <= width
        for line in _tree(self._shape, self._acceptance) if drawn else _levels(self._shape, self._acceptance, width):
            yield Text(line.translate(_ASCII) if options.ascii_only else line, no_wrap=True)
        yield Text(caption(self._shape, self._acceptance))


def _tree(shape: TreeShape, acceptance: Sequence[float]) -> list[str]:
    """A line for each leaf, with the chance of each node in percent; a first child is right of its parent."""
    labels = ["o", *(f"{min(round(100 * chance), 99):2}" for chance in shape.chances(acceptance)[1:].tolist())]
    children: list[list[int]] = [[] for _ in labels]
    for node, parent in enumerate(shape.parents[1:], start=1):
        children[parent].append(node)
    blocks: list[list[str]] = [[] for _ in labels]
    for node in reversed(range(shape.n_nodes)):
        blocks[node] = _beside(labels[node], [blocks[child] for child in children[node]])
    return blocks[ROOT]


def _beside(label: str, blocks: Sequence[list[str]]) -> list[str]:
    """The lines of a node: its label, and right of it the lines of its sub-trees, one below the other."""
    if not blocks:
        return [label]
    lines: list[str] = []
    blank = " " * len(label)
    for i, block in enumerate(blocks):
        is_last = i == len(blocks) - 1
        first, further = (_FIRST_OF_ONE, _LAST) if is_last else (_FIRST, _NEXT)
        below = blank + (_NOTHING if is_last else _PAST)
        lead = blank + further if i else label + first
        lines += [lead + block[0], *(below + line for line in block[1:])]
    return lines


def _levels(shape: TreeShape, acceptance: Sequence[float], max_width: int) -> list[str]:
    """A line for each level: its nodes, as a number and as a bar, and how many of them are expected to be accepted."""
    chances = shape.chances(acceptance)
    head = "level  nodes  expected  "
    unit = max(min(_BAR_WIDTH, max_width - len(head)), 1) / max(shape.widths)
    lines = [head.rstrip()]
    for depth, level in enumerate(shape.levels):
        bar = "\u2588" * max(round(unit * len(level)), 1)
        lines.append(f"{depth:>5}  {len(level):>5}  {chances[list(level)].sum():>8.2f}  {bar}")
    return lines


def pass_tree(drafted: Pass, token_bytes: Callable[[int], bytes]) -> Tree:
    """The tree of one pass. Accepted nodes are bold and say so; the others are dim and show their expected chance.

    Words say everything that the colours say, and colour-blind people can tell cyan from grey.
    """
    tree, accepted = drafted.tree, set(drafted.accepted.path)

    def label(node: int) -> Text:
        text = _shown(token_bytes(int(tree.tokens[node])))
        if node == ROOT:
            return Text(text, style="bold")
        if node in accepted:
            return Text(f"{text}  accepted", style="bold cyan")
        return Text(f"{text}  {min(math.exp(float(tree.scores[node])), 1.0):.2f}", style="dim")

    branches = {ROOT: Tree(label(ROOT))}
    for node in range(1, len(tree)):
        branches[node] = branches[int(tree.parents[node])].add(label(node))
    own = _shown(token_bytes(drafted.accepted.tokens[-1]))
    branches[drafted.accepted.path[-1]].add(Text(f"{own}  the target's own", style="bold"))
    return branches[ROOT]


def _shown(data: bytes) -> str:
    return repr(data.decode("utf-8", errors="replace"))
