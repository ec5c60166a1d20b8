"""Token trees in the terminal: the tree of a pass, and a static tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Group
from rich.text import Text
from rich.tree import Tree

from specrun.decoding.generation import StepOfText
from specrun.speculation.shape import TreeShape
from specrun.speculation.tree import ROOT
from specrun.views import output

_MAX_NODES, _MAX_DEPTH = 64, 16  # of a tree that is drawn node by node, in 80 columns


def caption(shape: TreeShape, acceptance: Sequence[float]) -> str:
    """The size of the tree, and the tokens that a pass over it is expected to commit."""
    nodes = f"{shape.n_nodes} node{'' if shape.n_nodes == 1 else 's'}"
    leaves = f"{shape.n_leaves} {'leaf' if shape.n_leaves == 1 else 'leaves'}"
    return f"{nodes}, {shape.depth} deep, {leaves}, {shape.expected(acceptance):.2f} tokens a pass expected"


def static_tree(shape: TreeShape, acceptance: Sequence[float]) -> Group:
    """A tree with the chance of every node in percent, or, of a large tree, what is expected of each of its levels."""
    chances = shape.chances(acceptance)
    if shape.n_nodes <= _MAX_NODES and shape.depth <= _MAX_DEPTH:
        branches = {ROOT: Tree("o")}
        for node, parent in enumerate(shape.parents[1:], start=1):
            branches[node] = branches[parent].add(f"{100 * chances[node]:.0f} %")
        return Group(branches[ROOT], caption(shape, acceptance))
    table = output.table("level", "nodes", "expected", right=("level", "nodes", "expected"))
    for depth, level in enumerate(shape.levels):
        table.add_row(str(depth), str(len(level)), f"{chances[list(level)].sum():.2f}")
    return Group(table, caption(shape, acceptance))


def pass_tree(drafted: StepOfText, token_bytes: Callable[[int], bytes]) -> Tree:
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
