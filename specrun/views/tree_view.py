"""The token tree of a pass in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich.text import Text
from rich.tree import Tree

from specrun.decoding.generation import StepOfText
from specrun.speculation.tree import ROOT


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
