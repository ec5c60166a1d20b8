"""Cost tables, calibration and the run's rate, by which drafters decide how large a tree pays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specrun.speculation.accept import Accepted
from specrun.speculation.drafter import Draft
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import CostModel, Milliseconds, marginal_ms
from specrun.speculation.planning.draft_times import DraftTimes
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.planning.pass_times import PassTimes
from specrun.speculation.tree import TokenTree

# Half and twice of `_DOUBTS` and of the passes of `_RUN_DECAY` change the mean rate on two simulated machines by 1 %,
# `_EASY_SHARE` = 1 by 1.04 on two and 0.96 on two others (scripts/bench_machines.py, code and prose): all is chance.
_RUN_DECAY = 0.98  # factor on the run's tokens and time after each pass, so that about the last 50 passes count
_EXPECTED_TOKENS = 4.0  # the rate that is expected at first counts as much as this many measured tokens
_IDLE = 16  # passes without drafting after which the recent counts of the calibration fade, all at once
_DOUBTS = 20.0  # counted nodes after which half of the calibration's chances is believed
_SOURCES_TRUST = 0.85  # share of the chances of draft sources alone that is believed, as they count for themselves
BEHIND = 8  # tokens that the draft has not read, from which on the time of its next pass is mostly that of reading
# Of what the cheapest further node of any pass must bring, so that nodes which are free beside others are found, too.
_LEAST_SHARE = 0.25
_EASY_SHARE = 0.6  # of the best rate that this pass can have, which counts if the run's own is lower
_LEAST_TREE = 8  # nodes of a tree that tells something
_NODES_OF_EACH = 16  # as a tree has by default: for several texts the price of a node is looked for among so many


@dataclass
class PassRecord:
    """What a target pass brought a text, with the drafting before it and the acceptance after it."""

    draft: Draft
    accepted: Accepted = field(default_factory=lambda: Accepted([], []))
    seconds: float = 0.0  # of everything but the drafting for other texts in the same pass
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    n_target: int = 1  # tokens of the target pass: all trees, committed tokens that were decoded again, and padding
    ctx: int = 0  # tokens that the target had in its cache before the pass
    n_texts: int = 1  # texts that the pass had tokens of
    has_times: bool = True  # False for all but one of the texts that share a pass, whose time is learned once

    @property
    def tree(self) -> TokenTree:
        return self.draft.tree

    @property
    def n_tokens(self) -> int:
        """Number of committed tokens."""
        return len(self.accepted.tokens)


@dataclass(frozen=True)
class RunCosts:
    """What passes take now, which the passes of a run correct. Guides of several temperatures share it.

    The times of the target's passes have specrun's own work in them.
    """

    target: PassTimes = field(default_factory=PassTimes)
    draft: DraftTimes = field(default_factory=DraftTimes)

    @classmethod
    def of(cls, costs: CostModel, padding: PassSizes = ANY_SIZE) -> RunCosts:
        """Measured tables, to begin with, where the target's passes are padded to these sizes."""
        return cls(PassTimes(costs.target.times, padding), DraftTimes(costs.draft))


class Guide:
    """Pass times, calibration and rate of a run.

    The best tree for a pass maximises `accepted tokens - rate * milliseconds`, where `rate` is the tokens per
    millisecond of the whole run. A pass for which this is positive raises the average, others lower it (Dinkelbach's
    condition for the maximum of a ratio of sums).

    costs: what passes take.
    rate: tokens per millisecond that the run is expected to reach; 0 if unknown.
    most_lost_ms: milliseconds that a pass may be expected to lose against plain decoding. As long as the calibration
        rests on few nodes, its chances count for little in this.
    """

    def __init__(self, costs: RunCosts, calibration: Calibration | None = None, rate: float = 0.0) -> None:
        self.calibration = calibration or Calibration()
        self.costs = costs
        self.most_lost_ms = np.inf
        self._n_others = 0  # tokens of other texts in the same pass,
        self._node_ms: float | None = None  # what each node takes there, and
        self._n_drafting = 1  # texts that share draft passes
        self._passes_without_draft = 0
        self._n_idle = 0
        self._target, self._draft = costs.target, costs.draft
        self.expect(rate)

    @property
    def knows_plain(self) -> bool:
        """Whether the time of plain decoding is known."""
        return self._target.knows_plain

    def expect(self, rate: float) -> None:
        """Begin a run at this rate."""
        self.rate = rate
        self._run_tokens = _EXPECTED_TOKENS if rate else 0.0
        self._run_ms = _EXPECTED_TOKENS / rate if rate else 0.0

    def target_row(self, ctx: int) -> Milliseconds:
        """float64[largest + 1]: row[n] is the milliseconds of a target pass over n tokens after `ctx` tokens, up to the
        largest that may be planned.
        """
        row = self._target.row(ctx)[self._n_others : self._target.reach + 1]
        return row if self._node_ms is None else np.asarray(self._node_ms * np.arange(len(row)))

    def among(self, n_others: int, rate: float, node_ms: float, n_drafting: int) -> Guide:
        """A guide for the tree of a pass that has `n_others` tokens of other texts besides.

        rate: tokens per millisecond of all these texts together, which a node must keep up with.
        node_ms: milliseconds that each node takes (see `node_ms`). n_drafting: texts that share the draft passes.
        """
        guide = copy(self)
        guide._n_others, guide._node_ms, guide.rate, guide.most_lost_ms = n_others, node_ms, rate, np.inf
        guide._n_drafting = n_drafting
        return guide

    def levels_row(self, ctx: int) -> Milliseconds:
        """float64[most nodes + 1]: row[n] is the milliseconds of a draft pass over n nodes after `ctx` tokens; where
        texts share it, the share of each in what a pass takes at least, and its nodes.
        """
        row = self._draft.row(self.plain_ms(ctx))
        return row if self._n_drafting == 1 else row - row[0] * (1 - 1 / self._n_drafting)

    def plain_ms(self, ctx: int) -> float:
        """Milliseconds that plain decoding takes for one token after `ctx` tokens."""
        return self._target.ms(1, ctx)

    def tree_ms(self, budget: int, n_levels: int, ctx: int) -> float:
        """Milliseconds of a pass over `budget` nodes, and of the draft passes for its `n_levels` levels; 0 for none."""
        ms = self._target.ms(budget, ctx)
        if not n_levels:
            return ms
        levels = self.levels_row(ctx)
        return ms + n_levels * float(levels[min(-(-(budget - 1) // n_levels), len(levels) - 1)])

    def chain_rate(self, chance: float, ctx: int) -> float:
        """Tokens in the time of a plain pass by the best chain of which each token is right with `chance`."""
        depths = np.array([n - 1 for n in self._target.sizes if 1 < n <= self._target.reach], np.intp)
        tokens = (1 - chance ** (depths + 1)) / (1 - chance)
        ms = self.target_row(ctx)[depths + 1] + depths * self.levels_row(ctx)[1]
        return float((tokens / ms).max(initial=0.0)) * self.plain_ms(ctx)

    def can_lose(self, ms: float, ctx: int) -> bool:
        """Whether a pass over a tree of some size takes at most `ms` longer than plain decoding for one token."""
        row = self.target_row(ctx)
        return bool(row[_LEAST_TREE:].min(initial=np.inf) - row[1] <= ms)

    def least_chance(self, target_row: Milliseconds, pending: int) -> float:
        """A chance so small that a node with it pays in a pass of no size. target_row, pending: as for `best_size`."""
        sizes = np.array([n for n in self._target.sizes if pending < n < len(target_row)], np.intp)
        slopes = np.diff(target_row[sizes]) / np.diff(sizes)
        return _LEAST_SHARE * self.rate * max(float(slopes.min(initial=np.inf)), 0.0) if len(slopes) else 0.0

    def best_size(
        self, chances: Milliseconds, target_row: Milliseconds, budget: int, pending: int, asked_draft: bool
    ) -> tuple[int, float]:
        """The number of nodes, root included, of the best tree, and the rate that it, and drafting, must keep up with.

        The run's rate does not count where this stretch of text is harder: it has to be written all the same, and a
        small pass would only leave it to the next ones.

        chances: float64[n], chances of all offered nodes in falling order, beginning with the root's 1.
        target_row: see `target_row`.
        budget: most nodes.
        pending: committed tokens that the target decodes again before the tree.
        asked_draft: whether the chances come from the draft model, too, and not from draft sources alone.
        """
        most = min(len(chances), budget, len(target_row) - 1 - pending)
        sizes = np.array([n - pending for n in self._target.sizes], np.intp)
        if self._node_ms is not None:
            sizes = np.arange(1, most + 1)
        sizes = np.append(sizes[(sizes >= 1) & (sizes <= most)], max(most, 1))
        tokens, ms = np.cumsum(chances)[sizes - 1], target_row[sizes + pending]
        rate = self.rate
        if ms.all() and self._node_ms is None:
            best = float((tokens / ms).max())
            rate = min(max(rate, _EASY_SHARE * best), best)
        value = tokens - rate * ms
        if self.most_lost_ms < np.inf:
            n_counted = self.calibration.n_counted
            trust = n_counted / (n_counted + _DOUBTS) if asked_draft else _SOURCES_TRUST
            lost = ms - float(target_row[1 + pending]) * (1 + trust * (tokens - 1))
            value[(lost > self.most_lost_ms) & (sizes > 1)] = -np.inf
        return int(sizes[value.argmax()]), rate

    def follow(self, record: PassRecord) -> None:
        """Update the rate after a pass with drafted tokens.

        It is the average of many passes, so that a few do not change which nodes pay, and at least plain decoding's.
        """
        self._run_tokens = _RUN_DECAY * self._run_tokens + record.n_tokens
        self._run_ms = _RUN_DECAY * self._run_ms + record.seconds * 1e3
        self.rate = max(self._run_tokens / self._run_ms if self._run_ms else 0.0, 1 / self.plain_ms(record.ctx))

    def drafting_ms(self, record: PassRecord) -> float:
        """Milliseconds that were expected of the draft passes before a pass of which nothing is learned yet."""
        levels = self.levels_row(record.ctx)
        return sum(float(levels[min(width, len(levels) - 1)]) for width in record.draft.widths)

    def read_prompt(self, n_tokens: int, seconds: float) -> None:
        self._target.read_prompt(n_tokens, seconds * 1e3)

    def learn(self, record: PassRecord, has_read: bool = True) -> None:
        """Update pass times, drafting times and the calibration after a pass.

        has_read: whether the draft model had read the text before. Else other drafting takes at most as long.
        """
        widths, offered = record.draft.widths, record.draft.offered
        if record.has_times:
            self._target.record(record.n_target, record.ctx, (record.seconds - record.draft_seconds) * 1e3)
        if widths and record.draft_seconds > 0 and self._passes_without_draft < BEHIND:
            ms = record.draft_seconds * 1e3
            if has_read or ms < self.drafting_ms(record):
                self._draft.record(widths, self.plain_ms(record.ctx), ms)
        if widths or record.has_times:
            self._passes_without_draft = 0 if widths else self._passes_without_draft + 1
        if len(record.tree) == 1 and offered is None:
            # What was counted long ago must not keep the draft from being asked again.
            self._n_idle += 1
            if self._n_idle % _IDLE == 0:
                self.calibration.fade(_IDLE)
            return
        path, tokens, probabilities = record.accepted.path, record.accepted.tokens, record.tree.probabilities
        if offered is not None:
            found = np.flatnonzero(offered.tokens == tokens[0])
            self.calibration.count(1, offered.shares, int(found[0]) if len(found) else None)
        for depth, node in enumerate(path, start=1):
            if depth == 1 and offered is not None:
                continue
            # Only children with a probability of the draft model count, in the order of their probabilities.
            children = [child for child in record.tree.children[node] if np.isfinite(probabilities[child])]
            children.sort(key=lambda child: -probabilities[child])
            if children:
                taken = path[depth] if depth < len(path) else None
                matched = children.index(taken) if taken in children else None
                self.calibration.count(depth, probabilities[children], matched)
        self.calibration.fade()


def node_ms(row: Milliseconds, n_tokens: int, n_texts: int) -> float:
    """Milliseconds for each node in the pass in which they take least, of those that trees of usual size make.

    A further token may take long in a small pass and next to nothing in one of twice the size, because kernels compute
    several tokens at a time. So one text's nodes may pay only together with those of the others: each tree is grown
    with this price, and then `nodes_that_pay` compares all nodes.

    row: float64[largest + 1], milliseconds of a pass by its tokens. n_tokens: of the pass without drafted nodes.
    """
    return marginal_ms(row[: n_tokens + 1 + _NODES_OF_EACH * n_texts], n_tokens)


def nodes_that_pay(
    chances: Sequence[NDArray[np.float64]], row: Milliseconds, n_tokens: int, rate: float, sizes: Collection[int]
) -> list[int]:
    """How many drafted nodes each tree keeps, so that expected tokens minus `rate` times milliseconds is largest.

    chances: of each text's drafted nodes, in any order; a node's is no larger than its parent's. row, n_tokens: as
    above. rate: tokens per millisecond. sizes: of passes that are considered, besides those with no node and with all.
    """
    texts = np.repeat(np.arange(len(chances)), [len(own) for own in chances])
    pooled = np.concatenate([np.empty(0), *chances])
    order = np.argsort(-pooled, kind="stable")
    most = max(min(len(order), len(row) - 1 - n_tokens), 0)
    gains = np.append(0.0, np.cumsum(pooled[order[:most]]))
    counts = np.array([n for n in range(most + 1) if n in (0, most) or n_tokens + n in sizes])
    best = int(counts[(gains[counts] - rate * row[np.minimum(n_tokens + counts, len(row) - 1)]).argmax()])
    return np.bincount(texts[order[:best]], minlength=len(chances)).tolist()
