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
from specrun.decoding.generation import Generation, StepOfText
from specrun.llama import DraftContext
from specrun.llama.draft import expand_together, start_together
from specrun.speculation.controllers.sharing import Sharing
from specrun.speculation.drafter import DraftNode, Growing
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import Milliseconds
from specrun.speculation.planning.guide import node_ms, nodes_that_pay
from specrun.speculation.tree import ROOT

_FEW = 8  # tokens of each text that the draft has to read at most after a pass; more are a prompt


def drafts_of_several(
    texts: Sequence[Generation], prefills: Sequence[Generation], sharing: Sharing
) -> list[StepOfText]:
    """A tree for each text. prefills: texts of whose prompts the pass has a chunk, too."""
    n_texts = len(texts) + len(prefills)
    n_read = sum(one.chunk_cells for one in prefills)
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
    steps: list[StepOfText] = []
    for text in texts:
        plan, guide, most = text.plans.plan(n_texts), text.plans.guide, share
        if plan.can_shrink and not pays:
            plan = OFF.plan()
        elif guide:
            # Of the nodes of all trees that can shrink those stay that pay most. Where the number of threads changed
            # since other texts began, this one's times are others, and passes of this size may be none that it plans.
            most = min(further if plan.can_shrink else share, max(guide.costs.target.reach - n_tokens, 0))
            guide = guide.among(n_tokens - text.n_needed, rate, price, len(texts))
        steps.append(text.begin_step(plan, most + 1, guide))
    _grow(steps)
    if pays and times:
        _cut(steps, n_read, row[: n_tokens + further + 1], rate, times.costs.target.sizes)
    return steps


def room_of(texts: Sequence[Generation]) -> tuple[int, int]:
    """Most tokens of a pass over these texts, and most nodes of their trees together."""
    target = texts[0].target
    config, padding = target.context.config, target.padding
    free = config.n_ctx - target.cells.n_elsewhere - target.n_cached
    return padding.largest(min(free, config.n_batch)), padding.largest(config.n_outputs)


def _cut(steps: Sequence[StepOfText], n_read: int, row: Milliseconds, rate: float, sizes: Collection[int]) -> None:
    """Cut the trees to the nodes that pay in one pass; trees whose size is fixed stay. The rest is that of
    `nodes_that_pay`.
    """
    is_sized = [one.drafting.guide is not None and one.drafting.plan.can_shrink for one in steps]
    if not any(is_sized):
        return
    drafted = zip(steps, is_sized, strict=True)
    chances = [np.exp(one.tree.scores[1:] if sized else np.empty(0)) for one, sized in drafted]
    n_tokens = n_read + sum(one.n_scored for one in steps) - sum(map(len, chances))
    for one, n, sized in zip(steps, nodes_that_pay(chances, row, n_tokens, rate, sizes), is_sized, strict=True):
        if sized:
            one.keep_nodes(n + 1)


def pass_size(steps: Sequence[StepOfText], prefills: Sequence[Generation]) -> int:
    """Tokens of the pass with padding: as its class of sizes has it, or more where that takes less time."""
    guide, target = steps[0].text.plans.guide, steps[0].text.target
    n = sum(one.n_scored for one in steps) + sum(one.chunk_cells for one in prefills)
    size = target.padding.padded(n)
    if n == 1 or guide is None or not target.cells.drops_padding:
        return size
    best = guide.costs.target.size(n)
    return best if size < best <= room_of([one.text for one in steps])[0] else size


@dataclass
class _Tree:
    """A tree that grows. nodes: those that the next draft pass is for."""

    step: StepOfText
    draft: DraftContext
    source: ModelCandidates
    growing: Growing
    nodes: Sequence[DraftNode] = ()

    def ask(self) -> bool:
        """Grow by what the last draft pass brought. Returns False if the tree asks for no further pass."""
        try:
            self.nodes = next(self.growing)
        except StopIteration as end:
            self.step.draft = replace(end.value, widths=())  # the times of shared passes are learned once
            return False
        return True


def _grow(steps: Sequence[StepOfText]) -> None:
    """Grow the tree of each text, in as few draft passes as possible."""
    together: list[_Tree] = []
    for step in steps:
        draft, source, drafter = step.text.engine.draft, step.drafting.source, step.drafter
        if drafter and source and isinstance(draft, DraftContext):
            growing = drafter.grow(step.text.target.tokens, step.limits)
            together.append(_Tree(step, draft, source, growing))
        else:
            step.grow()
    if len(together) < 2:
        for tree in together:
            tree.step.grow()
        return
    started, sizes, reading = clock.now(), list[int](), 0.0
    asking = [tree for tree in together if tree.ask()]
    while asking:
        before = clock.now()
        sizes += _passes(asking)
        if not reading and (sizes[0] == 0 or sizes[0] > _FEW * len(together)):
            reading = clock.now() - before
        asking = [tree for tree in asking if tree.ask()]
    first = together[0].step
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
        rows = start_together([(tree.draft, tree.step.text.target.tokens) for tree in beginning])
        for tree, row in zip(beginning, rows, strict=True):
            tree.source.ready = row[None].copy() if others else row[None]  # the next pass overwrites it
        sizes.append(context.n_last_pass or 0 if context.n_passes == n_before + 1 else 0)
    if others:
        for tree, ready in zip(others, expand_together([(tree.draft, tree.nodes) for tree in others]), strict=True):
            tree.source.ready = ready
        sizes.append(context.n_last_pass or 0)
    return sizes
