"""One step of one or several texts: the algorithm of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.engine.generation import Generation, Turn
from specrun.engine.shared_drafts import drafts_of_several
from specrun.llama.context import Logits
from specrun.llama.target import score_together
from specrun.speculation.controllers.sharing import Sharing


def step(texts: Sequence[Generation], readers: Sequence[Generation], sharing: Sharing) -> list[Turn]:
    """Draft a token tree for each text, score all trees in one pass of the target, and commit a path of each.

    texts: the texts that go on by this pass, whose prompts are read; often a single text.
    readers: texts of whose prompts the pass reads a portion besides.
    sharing: knows whether drafting pays for several texts in a pass.
    """
    if len(texts) > 1 or readers:
        turns = drafts_of_several(texts, readers, sharing)
    else:
        turns = [texts[0].draft(texts[0].plans.plan())]
    for turn, rows in zip(turns, scores(turns, readers), strict=True):
        turn.accept(rows)
        if turn.sources:
            turn.sources.learn(turn.draft.tree, rows, turn.accepted)
        turn.text.target.commit(turn.draft.tree, turn.accepted.path, turn.accepted.tokens[-1])
    return turns


def scores(turns: Sequence[Turn], readers: Sequence[Generation] = ()) -> list[Logits]:
    """The target's logits for each tree, from one pass, which also reads a portion of the readers' prompts."""
    if len(turns) == 1 and not readers:
        return [turns[0].text.target.score(turns[0].draft.tree)]
    return score_together([(turn.text.target, turn.draft.tree) for turn in turns], [one.target for one in readers])
