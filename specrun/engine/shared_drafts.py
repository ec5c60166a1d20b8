"""The trees of several texts that share a pass: how many nodes each may have, and how many pay.

Each text's own plan drafts its tree, in draft passes that the texts share (`shared_growth`). Where pass times are
known, trees are sized by the tokens a second of all texts together, and nothing is drafted where that is less than
without drafting. Only the speed depends on this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specrun.engine.generation import Generation, Turn
from specrun.engine.shared_growth import grow_together
from specrun.speculation.controllers.sharing import Sharing
from specrun.speculation.method import OFF
from specrun.speculation.planning.guide import node_ms, nodes_that_pay


def drafts_of_several(texts: Sequence[Generation], readers: Sequence[Generation], sharing: Sharing) -> list[Turn]:
    """A tree for each text. readers: texts of whose prompts the pass has a portion, too."""
    n_texts = len(texts) + len(readers)
    n_read = sum(one.n_next for one in readers)
    n_tokens = n_read + sum(text.n_needed for text in texts)
    room, rows = room_of(texts)
    further = max(min(room - n_tokens, rows - len(texts)), 0)  # nodes that the trees may have besides their roots
    plain = plain_rate(texts)
    pays, rate = sharing.drafts(len(texts), plain), sharing.rate(len(texts), plain)
    turns: list[Turn] = []
    for text in texts:
        plan, guide = text.plans.plan(n_texts), text.plans.guide
        share = further // len(texts)
        if guide:
            row = guide.target_row(text.target.n_cached)
            # Of the nodes of all trees that can shrink those stay that pay most.
            share = min(further if plan.can_shrink else share, max(len(row) - 1 - n_tokens, 0))
            guide = guide.among(n_tokens - text.n_needed, rate, node_ms(row, n_tokens, len(texts)), len(texts))
            plan = plan if pays or not plan.can_shrink else OFF.plan()
        turns.append(text.turn(plan, share + 1, guide))
    grow_together(turns)
    return _cut(turns, n_read, n_tokens + further, rate) if pays else turns


def room_of(texts: Sequence[Generation]) -> tuple[int, int]:
    """Most tokens of a pass over these texts, and most nodes of their trees together."""
    target = texts[0].target
    config, padding = target.context.config, target.padding
    free = config.n_ctx - target.cells.n_elsewhere - target.n_cached
    return padding.largest(min(free, config.n_batch)), padding.largest(config.n_outputs)


def plain_rate(texts: Sequence[Generation]) -> float:
    """Tokens per millisecond that a pass without drafting is expected to bring; 0 where no pass times are known."""
    guide = texts[0].plans.guide
    if guide is None:
        return 0.0
    row = guide.target_row(texts[0].target.n_cached)
    return len(texts) / float(row[min(len(texts), len(row) - 1)])


def _cut(turns: list[Turn], n_read: int, most: int, rate: float) -> list[Turn]:
    """The trees with as many nodes as pay in one pass of at most `most` tokens; trees whose size is fixed stay."""
    guide = turns[0].text.plans.guide
    is_sized = [turn.drafting.guide is not None and turn.drafting.plan.can_shrink for turn in turns]
    if guide is None or not any(is_sized):
        return turns
    row = guide.target_row(max(turn.text.target.n_cached for turn in turns))[: most + 1]
    drafted = zip(turns, is_sized, strict=True)
    chances = [np.exp(turn.draft.tree.scores[1:] if sized else np.empty(0)) for turn, sized in drafted]
    n_tokens = n_read + sum(turn.n_tokens for turn in turns) - sum(map(len, chances))
    for turn, n, sized in zip(turns, nodes_that_pay(chances, row, n_tokens, rate, guide.sizes), is_sized, strict=True):
        if sized:
            turn.keep_nodes(n + 1)
    return turns
