"""Passes over one text or several: the step, which is the algorithm of speculative decoding; which texts share a pass;
how long it took, and what is learned from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrun import clock
from specrun.decoding.generation import Generation, StepOfText
from specrun.decoding.prompt_states import PromptStates
from specrun.decoding.shared_drafts import drafts_of_several, pass_size, room_of
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


def write_alone(generation: Generation, states: PromptStates | None = None) -> Iterator[StepOfText]:
    """Write a text alone, and yield its passes, the last of which has its `finish` set. Raises PromptError as `begin`,
    which has `states`.

    Whether the text was interrupted is asked after every pass, and after every chunk of the prompt; then there may be
    no pass at all. The iteration may be abandoned after any pass: between two passes both KV caches are consistent.
    """
    passes = Passes()
    generation.begin(states)
    while generation.is_reading:
        if generation.interrupted():
            return
        passes.read([generation])
    while not generation.is_over:
        yield passes.next_pass([generation])[0]


class Passes:
    """Makes the passes of texts: of a single text, or of several that share one context.

    Which texts share a pass depends on its room; texts that do not fit are first in the next pass.
    """

    def __init__(self) -> None:
        self._sharing = Sharing()
        self._turn = 0
        self._reading_turn = 0

    def prefills(self, generations: Sequence[Generation], writing: Sequence[Generation] = ()) -> list[Generation]:
        """The texts whose prompts the next pass reads on. Each is the first in turn, so that none waits for a long one;
        others follow as far as they fit in a pass over prompts, and, with exact passes, in the largest exact size.

        writing: texts whose next tokens shall fit, too, so that they need no pass of their own.
        """
        turn = self._reading_turn % len(generations)
        self._reading_turn += 1
        target = generations[0].target
        chosen: list[Generation] = []
        n_tokens = sum(text.n_needed for text in writing)
        for text in [*generations[turn:], *generations[:turn]]:
            n = n_tokens + text.chunk_cells
            fits = n <= target.prompt_pass and target.padding.has_room_for(n)
            if not chosen or (fits and target.cells.shares_prompts):
                chosen.append(text)
                n_tokens = n
        return chosen

    def fits_with_decoding(self, generations: Sequence[Generation], prefills: Sequence[Generation]) -> bool:
        """Whether a pass over the prompts of `prefills` may have the next tokens of these texts, too."""
        target = generations[0].target
        n = sum(text.chunk_cells for text in prefills) + sum(text.n_needed for text in generations)
        fits = n <= target.context.config.n_batch and target.padding.has_room_for(n)
        return fits and target.cells.shares_prompts

    def read(self, prefills: Sequence[Generation]) -> None:
        """Read a chunk of each of these prompts, in one pass."""
        sizes = [text.chunk_cells for text in prefills]
        started = clock.now()
        score_together([], [text.target for text in prefills])
        _count_reading(prefills, sizes, clock.now() - started, sum(sizes))

    def next_pass(self, generations: Sequence[Generation], prefills: Sequence[Generation] = ()) -> list[StepOfText]:
        """A step of as many of the texts, which share a context and whose prompts are read, as fit one pass.

        prefills: texts of whose prompts the pass has a chunk, too (see `fits_with_decoding`).
        """
        texts = self._chosen(generations, prefills)
        for text in texts:
            text.begin_passes(is_alone=len(generations) == 1 and not prefills)
        sizes = [text.chunk_cells for text in prefills]
        n_cached = [text.target.n_cached for text in texts]
        context = texts[0].target.context
        started, decoded = clock.now(), context.decode_seconds
        steps = step(texts, prefills, self._sharing)
        seconds, target_seconds = clock.now() - started, context.decode_seconds - decoded
        n_tokens, n_texts = sum(sizes) + sum(one.n_scored for one in steps), len(texts) + len(prefills)
        drafting = sum(one.draft_seconds for one in steps)
        for one, ctx in zip(steps, n_cached, strict=True):
            one.seconds, one.target_seconds = seconds - drafting + one.draft_seconds, target_seconds
            one.ctx, one.n_texts, one.has_times = ctx, n_texts, one is steps[0]
            one.padding = one.n_target - n_tokens if n_texts == 1 else 0
            one.text.done(one)
        for one in steps:
            one.text.plans.record(one)
        if prefills:
            _count_reading(prefills, sizes, target_seconds, n_tokens)
        if len(texts) > 1 and not prefills:
            reading = sum(one.draft_reading_seconds for one in steps)
            n_accepted = sum(one.n_tokens for one in steps)
            self._sharing.record(len(texts), n_accepted, 1e3 * seconds, 1e3 * reading)
        return steps

    def _chosen(self, generations: Sequence[Generation], prefills: Sequence[Generation]) -> list[Generation]:
        """The texts that share the next pass, beginning with another text each time."""
        if len(generations) == 1:  # a plain pass may take less than a millisecond
            return list(generations)
        turn = self._turn % len(generations)
        ordered = [*generations[turn:], *generations[:turn]]
        left, rows_left = room_of(ordered)
        left -= sum(text.chunk_cells for text in prefills)
        chosen: list[Generation] = []
        for text in ordered:
            left -= text.n_needed
            rows_left -= 1
            if chosen and (left < 0 or rows_left < 0):
                break
            chosen.append(text)
        self._turn = turn + (1 if len(chosen) == len(generations) else len(chosen))
        return chosen


def _count_reading(prefills: Sequence[Generation], sizes: Sequence[int], seconds: float, n_tokens: int) -> None:
    """Give each prompt its share of the time of a pass over `n_tokens` tokens. sizes: tokens of each prompt."""
    for text, n in zip(prefills, sizes, strict=True):
        text.statistics.reading_seconds += seconds * n / n_tokens
