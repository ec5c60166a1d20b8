"""The trees of several texts that share a pass: how many nodes each may have, and how many pay.

Each text's own plan drafts its tree, in draft passes that the texts share: each asks for candidates of a few nodes at a
time. Where pass times are known, trees are sized by the tokens a second of all texts together, and nothing is drafted
where that is less than without drafting. Only the speed depends on this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specrun import clock
from specrun.engine.generation import Generation, Turn
from specrun.llama import DraftContext
from specrun.llama.draft import expand_together, start_together
from specrun.speculation.controllers.sharing import Sharing
from specrun.speculation.drafter import DraftNode, Growing, StepwiseDrafter
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import Milliseconds
from specrun.speculation.planning.guide import node_ms, nodes_that_pay
from specrun.speculation.tree import ROOT

_FEW = 8  # tokens of each text that the draft has to read at most after a pass; more are a prompt


def drafts_of_several(texts: Sequence[Generation], readers: Sequence[Generation], sharing: Sharing) -> list[Turn]:
    """A tree for each text. readers: texts of whose prompts the pass has a portion, too."""
    n_texts = len(texts) + len(readers)
    n_read = sum(one.n_next for one in readers)
    n_tokens = n_read + sum(text.n_needed for text in texts)
    room, rows = room_of(texts)
    further = max(min(room - n_tokens, rows - len(texts)), 0)  # nodes that the trees may have besides their roots
    share, pays, rate, row, price = further // len(texts), True, 0.0, np.empty(0), 0.0
    # Other temperatures have other chances, but not other times.
    if times := next((text.plans.guide for text in texts if text.plans.guide), None):
        row = times.target_row(max(text.target.n_cached for text in texts))
        plain = len(texts) / float(row[min(len(texts), len(row) - 1)])  # tokens per millisecond without drafting
        pays, rate = sharing.drafts(len(texts), plain), sharing.rate(len(texts), plain)
        price = node_ms(row, n_tokens, len(texts)) if pays else 0.0
    turns: list[Turn] = []
    for text in texts:
        plan, guide, most = text.plans.plan(n_texts), text.plans.guide, share
        if plan.can_shrink and not pays:
            plan = OFF.plan()
        elif guide:
            # Of the nodes of all trees that can shrink those stay that pay most.
            most = min(further if plan.can_shrink else share, max(len(row) - 1 - n_tokens, 0))
            guide = guide.among(n_tokens - text.n_needed, rate, price, len(texts))
        turns.append(text.turn(plan, most + 1, guide))
    _grow(turns)
    return _cut(turns, n_read, row[: n_tokens + further + 1], rate, times.sizes) if pays and times else turns


def room_of(texts: Sequence[Generation]) -> tuple[int, int]:
    """Most tokens of a pass over these texts, and most nodes of their trees together."""
    target = texts[0].target
    config, padding = target.context.config, target.padding
    free = config.n_ctx - target.cells.n_elsewhere - target.n_cached
    return padding.largest(min(free, config.n_batch)), padding.largest(config.n_outputs)


def _cut(turns: list[Turn], n_read: int, row: Milliseconds, rate: float, sizes: Collection[int]) -> list[Turn]:
    """The trees with as many nodes as pay in one pass; trees whose size is fixed stay. The rest is that of
    `nodes_that_pay`.
    """
    is_sized = [turn.drafting.guide is not None and turn.drafting.plan.can_shrink for turn in turns]
    if not any(is_sized):
        return turns
    drafted = zip(turns, is_sized, strict=True)
    chances = [np.exp(turn.draft.tree.scores[1:] if sized else np.empty(0)) for turn, sized in drafted]
    n_tokens = n_read + sum(turn.n_tokens for turn in turns) - sum(map(len, chances))
    for turn, n, sized in zip(turns, nodes_that_pay(chances, row, n_tokens, rate, sizes), is_sized, strict=True):
        if sized:
            turn.keep_nodes(n + 1)
    return turns


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
            self.turn.draft = replace(end.value, widths=())  # the times of shared passes are learned once
            return False
        return True


def _grow(turns: Sequence[Turn]) -> None:
    """Grow the tree of each text, in as few draft passes as possible."""
    together: list[_Tree] = []
    for turn in turns:
        model, source, drafter = turn.text.engine.draft, turn.drafting.source, turn.drafter
        steps = drafter.grow(turn.text.target.tokens, turn.limits) if isinstance(drafter, StepwiseDrafter) else None
        if steps and isinstance(model, DraftContext) and isinstance(source, ModelCandidates):
            together.append(_Tree(turn, model, source, steps))
        else:
            turn.grow()
    if len(together) < 2:
        for tree in together:
            tree.turn.grow()
        return
    started, sizes, reading = clock.now(), list[int](), 0.0
    asking = [tree for tree in together if tree.ask()]
    while asking:
        before = clock.now()
        sizes += _passes(asking)
        if not reading and (sizes[0] == 0 or sizes[0] > _FEW * len(together)):
            reading = clock.now() - before
        asking = [tree for tree in asking if tree.ask()]
    first = together[0].turn
    first.draft = replace(first.draft, widths=tuple(sizes) if all(sizes) else ())
    first.draft_seconds += clock.now() - started
    first.draft_reading_seconds = reading


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
