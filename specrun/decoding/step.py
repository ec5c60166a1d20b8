"""One step of one or several texts: the algorithm of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.decoding.generation import Generation, StepOfText
from specrun.decoding.shared_drafts import drafts_of_several, pass_size
from specrun.llama.target import score_together
from specrun.speculation.controllers.sharing import Sharing


def step(texts: Sequence[Generation], prefills: Sequence[Generation], sharing: Sharing) -> list[StepOfText]:
    """Draft a token tree for each text, score all trees in one pass of the target, and commit a path of each.

    texts: the texts that go on by this pass, whose prompts are read; often a single text.
    prefills: texts of whose prompts the pass also reads a chunk.
    sharing: knows whether drafting pays for several texts in a pass.
    """
    if len(texts) == 1 and not prefills:
        steps = [texts[0].begin_step(texts[0].plans.plan()).grow()]
    else:
        steps = drafts_of_several(texts, prefills, sharing)
    size, prompts = pass_size(steps, prefills), [one.target for one in prefills]
    scores = score_together([(one.text.target, one.tree) for one in steps], prompts, size)
    for one, rows in zip(steps, scores, strict=True):
        one.n_target = size
        one.accept(rows)
        one.text.target.commit(one.tree, one.accepted.path, one.accepted.tokens[-1])
    return steps
