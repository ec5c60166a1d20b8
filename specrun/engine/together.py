"""Passes of the target over several texts: over their prompts, or over a tree of each, which may be its root alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from specrun.engine.generation import Generation, Proposal
from specrun.engine.statistics import Pass
from specrun.llama.context import Logits
from specrun.llama.scoring import score_together
from specrun.speculation.controllers.chooser import PlanChooser
from specrun.speculation.controllers.sharing import Sharing
from specrun.speculation.method import OFF
from specrun.speculation.planning.shared_pass import node_ms, nodes_that_pay
from specrun.speculation.record import PassRecord


class Together:
    """Makes the passes that several texts share.

    Each text's own plan drafts its tree, which may take its share of the room that a pass has. Where pass times are
    known, trees are sized by the tokens a second of all texts together, and nothing is drafted where that is less than
    without. Only the speed depends on this.
    """

    def __init__(self) -> None:
        self._sharing = Sharing()
        self._turn = 0
        self._reading_turn = 0

    def readers(self, generations: Sequence[Generation]) -> list[Generation]:
        """Those whose prompts the next pass reads on: each is the first in turn, so that none waits for a long one, and
        further ones as far as their portions fit into the same pass. Where sizes that give a token the same bits are
        bounded, that is the bound: a portion that is larger, or smaller, has the bits that it has alone.
        """
        turn = self._reading_turn % len(generations)
        self._reading_turn += 1
        target = generations[0].target
        chosen: list[Generation] = []
        n_tokens = 0
        for one in [*generations[turn:], *generations[:turn]]:
            n = n_tokens + one.n_next
            if not chosen or (n <= target.prompt_pass and target.padding.has_room_for(n)):
                chosen.append(one)
                n_tokens = n
        return chosen

    def can_write(self, generations: Sequence[Generation], readers: Sequence[Generation]) -> bool:
        """Whether a pass over the prompts of `readers` may have the next tokens of these texts, too."""
        target = generations[0].target
        n = sum(one.n_next for one in readers) + sum(one.target.n_pending + 1 for one in generations)
        return n <= target.context.config.n_batch and target.padding.has_room_for(n)

    def read(self, readers: Sequence[Generation]) -> None:
        """Read a portion of each of these prompts, in one pass."""
        self._pass([], [], readers)

    def next_pass(
        self, generations: Sequence[Generation], readers: Sequence[Generation] = ()
    ) -> list[tuple[Generation, Pass]]:
        """A pass over as many of the texts as fit one: all, as long as exact passes are not small. Others are first in
        the next one. The texts must share one context, and their prompts must be read.

        readers: texts of whose prompts it has a portion, too (see `can_write`).
        """
        n_read = sum(one.n_next for one in readers)
        chosen = self._chosen(generations, n_read)
        drafts = self._drafts(chosen)
        proposals = self._proposals(chosen, drafts, n_read)
        seconds, rows = self._pass(chosen, proposals, readers)
        n_target = chosen[0].target.padding.padded(n_read + sum(proposal.n_target for proposal in proposals))
        result = []
        for one, proposal, own in zip(chosen, proposals, rows, strict=True):
            n_cached = one.target.n_cached
            done = one.take(proposal, own)
            plans = one.plans
            if plans.guide and proposal.drafted:
                plans.guide.drafted = proposal.drafted
            with_drafting = seconds + proposal.seconds
            plans.record_together(
                PassRecord(done.tree, done.accepted, with_drafting, seconds, proposal.seconds, n_target, n_cached)
            )
            result.append((one, done))
        if not readers:
            ms = 1e3 * (seconds + sum(proposal.seconds for proposal in proposals))
            self._sharing.record(len(chosen), drafts, sum(len(done.accepted.tokens) for _, done in result), ms)
        return result

    def _pass(
        self, chosen: Sequence[Generation], proposals: Sequence[Proposal], readers: Sequence[Generation]
    ) -> tuple[float, list[Logits]]:
        """The seconds of the pass, and the target's logits for each proposal."""
        sizes = [one.n_next for one in readers]
        n_tokens = sum(sizes) + sum(proposal.n_target for proposal in proposals)
        trees = [(one.target, proposal.tree) for one, proposal in zip(chosen, proposals, strict=True)]
        started = time.perf_counter()
        rows = score_together(trees, [one.target for one in readers])
        seconds = time.perf_counter() - started
        for one, n in zip(readers, sizes, strict=True):
            one.has_read(seconds * n / n_tokens)
        return seconds, rows

    def _chosen(self, generations: Sequence[Generation], n_read: int) -> list[Generation]:
        """Those that share the next pass, beginning with another one each time. n_read: tokens of prompts in it."""
        turn = self._turn % len(generations)
        ordered = [*generations[turn:], *generations[:turn]]
        left, rows_left = _room(ordered)
        left -= n_read
        chosen: list[Generation] = []
        for one in ordered:
            left -= one.target.n_pending + 1
            rows_left -= 1
            if chosen and (left < 0 or rows_left < 0):
                break
            chosen.append(one)
        self._turn = turn + (1 if len(chosen) == len(generations) else len(chosen))
        return chosen

    def _drafts(self, chosen: Sequence[Generation]) -> bool:
        """Whether texts whose trees follow pass times draft."""
        return self._sharing.drafts(len(chosen), _plain_rate(chosen))

    def _proposals(self, chosen: Sequence[Generation], drafts: bool, n_read: int) -> list[Proposal]:
        room, rows = _room(chosen)
        needed = [one.target.n_pending + 1 for one in chosen]
        n_tokens = n_read + sum(needed)
        further = min(room - n_tokens, rows - len(chosen))  # nodes that the trees may have besides their roots
        rate = self._sharing.rate(len(chosen), _plain_rate(chosen))
        proposals: list[Proposal] = []
        for i, one in enumerate(chosen):
            plans = one.plans
            guide = plans.guide
            plan = plans.together if drafts or not _is_sized(plans) else OFF.plan()
            share = max(further, 0) // (len(chosen) - i)
            others = n_tokens - needed[i]
            sizing: AbstractContextManager[None] = nullcontext()
            if guide:
                row = guide.target_row(one.target.n_cached)
                share = min(share, max(len(row) - 1 - n_tokens, 0))
                sizing = guide.among(others, rate, node_ms(row, n_tokens, len(chosen)))
            with sizing:
                proposals.append(one.propose(plan, share + 1))
            further -= len(proposals[-1].tree) - 1
        return _cut(chosen, proposals, n_read, rate) if drafts else proposals


def _cut(chosen: Sequence[Generation], proposals: Sequence[Proposal], n_read: int, rate: float) -> list[Proposal]:
    """The proposals with as many nodes as pay in one pass; trees whose size is fixed stay."""
    guide = chosen[0].plans.guide
    is_sized = [
        _is_sized(one.plans) and proposal.tree.proposals is None
        for one, proposal in zip(chosen, proposals, strict=True)
    ]
    if guide is None or not any(is_sized):
        return list(proposals)
    row = guide.target_row(max(one.target.n_cached for one in chosen))
    chances = [
        np.exp(proposal.tree.scores[1:] if sized else np.empty(0))
        for proposal, sized in zip(proposals, is_sized, strict=True)
    ]
    n_tokens = n_read + sum(proposal.n_target for proposal in proposals) - sum(map(len, chances))
    kept = nodes_that_pay(chances, row, n_tokens, rate, guide.sizes)
    return [
        proposal.with_nodes(n + 1) if sized else proposal
        for proposal, n, sized in zip(proposals, kept, is_sized, strict=True)
    ]


def _is_sized(plans: PlanChooser) -> bool:
    """Whether pass times decide how large the trees of this chooser are."""
    method = plans.together.method
    return plans.guide is not None and (method.is_adaptive or not method.needs_draft)


def _room(generations: Sequence[Generation]) -> tuple[int, int]:
    """Most tokens of a pass over these texts, and most nodes of their trees together."""
    target = generations[0].target
    config, padding = target.context.config, target.padding
    free = config.n_ctx - target.cells.n_elsewhere - target.n_cached
    return padding.largest(min(free, config.n_batch)), padding.largest(config.n_outputs)


def _plain_rate(generations: Sequence[Generation]) -> float:
    """Tokens per millisecond that a pass without drafting is expected to bring; 0 where no pass times are known."""
    n = len(generations)
    guide = generations[0].plans.guide
    if guide is None:
        return 0.0
    row = guide.target_row(generations[0].target.n_cached)
    return n / float(row[min(n, len(row) - 1)])
