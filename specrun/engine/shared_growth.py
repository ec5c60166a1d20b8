"""Growing the trees of several texts in the same draft passes: each asks for candidates of a few nodes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun import clock
from specrun.engine.generation import Turn
from specrun.llama import DraftContext
from specrun.llama.draft import expand_together, start_together
from specrun.speculation.drafter import DraftNode, Growing, StepwiseDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.tree import ROOT

_FEW = 8  # tokens of each text that the draft has to read at most after a pass; more are a prompt


@dataclass
class _Tree:
    """A tree that grows. nodes: those that the next draft pass is for."""

    turn: Turn
    draft: DraftContext
    source: ModelCandidates
    growing: Growing
    nodes: Sequence[DraftNode] = ()

    def ask(self) -> bool:
        """Grow by what the last draft pass brought. Returns False if the tree asks for no further pass."""
        try:
            self.nodes = next(self.growing)
        except StopIteration as end:
            self.turn.draft = end.value
            return False
        return True


def grow_together(turns: Sequence[Turn]) -> None:
    """Grow the tree of each text, in as few draft passes as possible."""
    trees = [_tree(turn) for turn in turns]
    together = [tree for tree in trees if tree]
    for turn, tree in zip(turns, trees, strict=True):
        if tree is None or len(together) == 1:
            turn.grow()
    if len(together) < 2:
        return
    started, sizes = clock.now(), list[int]()
    asking = [tree for tree in together if tree.ask()]
    reading = 0.0
    while asking:
        before = clock.now()
        sizes += _passes(asking)
        if not reading and (sizes[0] == 0 or sizes[0] > _FEW * len(together)):
            reading = clock.now() - before
        asking = [tree for tree in asking if tree.ask()]
    # The times of passes over several texts are learned once.
    for tree in together:
        tree.turn.draft = replace(tree.turn.draft, widths=())
    first = together[0].turn
    first.draft = replace(first.draft, widths=tuple(sizes) if all(sizes) else ())
    first.draft_seconds += clock.now() - started
    first.draft_reading_seconds = reading


def _tree(turn: Turn) -> _Tree | None:
    """The tree of a text if it can take draft passes together with others; None if it cannot, or does not grow."""
    draft, source, drafter = turn.text.engine.draft, turn.drafting.source, turn.drafter
    if not (isinstance(drafter, StepwiseDrafter) and isinstance(source, ModelCandidates)):
        return None
    if not isinstance(draft, DraftContext):
        return None
    return _Tree(turn, draft, source, drafter.grow(turn.text.target.tokens, turn.limits))


def _passes(asking: Sequence[_Tree]) -> list[int]:
    """Make the draft passes that the trees ask for. Returns the tokens of each; 0 where that takes several, as for
    texts that the draft reads whole.
    """
    context, sizes = asking[0].draft.context, list[int]()
    beginning = [tree for tree in asking if tree.nodes[0].id == ROOT]
    others = [tree for tree in asking if tree.nodes[0].id != ROOT]
    n_before = context.n_passes
    if beginning:
        rows = start_together([(tree.draft, tree.turn.text.target.tokens) for tree in beginning])
        for tree, row in zip(beginning, rows, strict=True):
            tree.source.ready = row[None].copy() if others else row[None]  # the next pass overwrites it
        sizes.append(context.n_last_pass or 0 if context.n_passes == n_before + 1 else 0)
    if others:
        for tree, ready in zip(others, expand_together([(tree.draft, tree.nodes) for tree in others]), strict=True):
            tree.source.ready = ready
        sizes.append(context.n_last_pass or 0)
    return sizes
