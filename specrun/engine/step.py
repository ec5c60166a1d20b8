"""One step of one or several texts: the algorithm of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.engine.generation import Generation, Turn
from specrun.engine.shared_drafts import drafts_of_several, room_of
from specrun.llama.context import Logits
from specrun.llama.target import score_together
from specrun.speculation.controllers.sharing import Sharing


def step(texts: Sequence[Generation], readers: Sequence[Generation], sharing: Sharing) -> tuple[list[Turn], int]:
    """Draft a token tree for each text, score all trees in one pass of the target, and commit a path of each.
    Returns each text's part, and the tokens of the pass, with padding.

    texts: the texts that go on by this pass, whose prompts are read; often a single text.
    readers: texts of whose prompts the pass reads a portion besides.
    sharing: knows whether drafting pays for several texts in a pass.
    """
    if len(texts) > 1 or readers:
        turns = drafts_of_several(texts, readers, sharing)
    else:
        turns = [texts[0].draft(texts[0].plans.plan())]
    size = _size(turns, readers)
    for turn, rows in zip(turns, scores(turns, readers, size), strict=True):
        turn.accept(rows)
        if turn.sources:
            turn.sources.learn(turn.draft.tree, rows, turn.accepted)
        turn.text.target.commit(turn.draft.tree, turn.accepted.path, turn.accepted.tokens[-1])
    return turns, size


def scores(turns: Sequence[Turn], readers: Sequence[Generation] = (), least: int = 0) -> list[Logits]:
    """The target's logits for each tree, from one pass, which also reads a portion of the readers' prompts.

    least: tokens that the pass has at least, with padding.
    """
    texts = [(turn.text.target, turn.draft.tree) for turn in turns]
    return score_together(texts, [one.target for one in readers], least)


def _size(turns: Sequence[Turn], readers: Sequence[Generation]) -> int:
    """Tokens of the pass with padding: as its class of sizes has it, or more where that takes less time."""
    guide, target = turns[0].text.plans.guide, turns[0].text.target
    n = sum(turn.n_tokens for turn in turns) + sum(one.n_next for one in readers)
    size = target.padding.padded(n)
    if n == 1 or guide is None or not target.cells.drops_padding:
        return size
    best = guide.size(n)
    return best if size < best <= room_of([turn.text for turn in turns])[0] else size
