"""From a row of logits and its position to the sampled token, or to ranked candidates for a drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters
from specrun.sampling.adjustments import NO_TOKEN, Biases, Constraint, SamplingParameters, masked, penalized
from specrun.sampling.filters import Logits, TokenIds
from specrun.sampling.noise import LARGE_NOISE, SharedNoise

_DRAFT_MARGIN = 4.0  # nats; candidates whose score is this far below the best are not worth a node of a tree
_FILTERED_PENALTY = 1.0  # nats; at T=0.8 trees of 64 nodes commit 3 % more tokens a pass than without such candidates
_ROUNDING = 1e-3  # an upper bound of the rounding error of a threshold in float32


@dataclass(frozen=True)
class Candidates:
    """Tokens that could be next, best first."""

    tokens: TokenIds  # [k]
    scores: NDArray[np.float64]  # [k], the quantity whose argmax is sampled: the logit, or logit / T + noise

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64[k]: softmax of the scores, the draft's probability of each candidate among all candidates."""
        return np.exp(self.log_shares())

    def log_shares(self, sharpness: float = 1.0) -> NDArray[np.float64]:
        """float64[k]: log softmax of `sharpness * scores`; k may be 0."""
        if not len(self.scores):
            return self.scores
        shifted = sharpness * (self.scores - self.scores[0])
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))


@dataclass(frozen=True)
class CandidateRows:
    """The candidates after each of n nodes. The scores after the last candidate of a row are minus infinity."""

    tokens: TokenIds  # [n, k]
    scores: NDArray[np.float64]  # [n, k], as in `Candidates`

    @classmethod
    def of(cls, each: Sequence[Candidates]) -> CandidateRows:
        """The candidates of several nodes together."""
        shape = len(each), max(len(one.tokens) for one in each)
        rows = cls(np.zeros(shape, np.int64), np.full(shape, -np.inf))
        for i, one in enumerate(each):
            rows.tokens[i, : len(one.tokens)], rows.scores[i, : len(one.tokens)] = one.tokens, one.scores
        return rows

    def __iter__(self) -> Iterator[Candidates]:
        return (self[i] for i in range(len(self.tokens)))

    def __getitem__(self, i: int) -> Candidates:
        k = int((self.scores[i] > -np.inf).sum())
        return Candidates(self.tokens[i, :k], self.scores[i, :k])

    def log_shares(self, sharpness: float = 1.0) -> NDArray[np.float64]:
        """float64[n, k]: as `Candidates.log_shares` of each row, and minus infinity after its last candidate."""
        if self.scores.size and self.scores[:, -1].min() > -np.inf:
            shifted = sharpness * (self.scores - self.scores[:, :1])
            return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
        # The sum of a row that is filled up to a length may differ in its last bit.
        result = np.full(self.scores.shape, -np.inf)
        for row, one in zip(result, self, strict=True):
            row[: len(one.scores)] = one.log_shares(sharpness)
        return result


@dataclass(frozen=True)
class Distribution:
    """Tokens that can be sampled, with their probabilities."""

    tokens: TokenIds  # [k], ascending
    probabilities: NDArray[np.float64]  # [k], all above 0; they sum to 1

    def dense(self, n_vocab: int) -> NDArray[np.float64]:
        """float64[n_vocab]: the probability of every token of the vocabulary."""
        whole = np.zeros(n_vocab)
        whole[self.tokens] = self.probabilities
        return whole


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was written, and what else was likely there, before biases, penalties, filters and temperature."""

    token: int
    logprob: float  # the natural logarithm of its probability
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest tokens, likeliest first


class Sampler:
    """The rule by which target and draft choose tokens.

    A sampled token is a function of its logits, its absolute position (the number of tokens before it), the seed and,
    with penalties or a constraint, the tokens before it. It does not depend on how the logits were computed.

    constraint: decides what may follow the first `n_prompt` tokens. The filters see allowed tokens only.

    Raises UsageError for a bias of a token that does not exist.
    """

    def __init__(
        self, parameters: SamplingParameters, n_vocab: int, constraint: Constraint | None = None, n_prompt: int = 0
    ) -> None:
        self.parameters = parameters
        self.n_vocab = n_vocab
        self._noise = SharedNoise(parameters.seed, n_vocab)
        self._biases = Biases(parameters.logit_bias, n_vocab) if parameters.logit_bias else None
        self.constraint = constraint
        self._n_prompt = n_prompt

    def recent(self, tokens: Sequence[int]) -> list[int]:
        """The end of a text that `sample` needs: what penalties look at, with a constraint all after the prompt."""
        n_wanted = self.parameters.repeat_last_n if self.parameters.has_penalties else 0
        n_wanted = max(n_wanted, len(tokens) - self._n_prompt if self.constraint else 0)
        return list(tokens[max(len(tokens) - n_wanted, 0) :])

    @property
    def reads_text(self) -> bool:
        """Whether a token depends on the tokens before it."""
        return self.parameters.has_penalties or self.constraint is not None

    def sample(self, logits: Logits, position: int, recent: Sequence[int]) -> int:
        """The token at `position`, or NO_TOKEN if the constraint allows none.

        logits: float32[n_vocab]. recent: what the method `recent` returns for the text before `position`.
        Raises LlamaError for logits that are no numbers.
        """
        logits = self._constrained(logits, position, recent)
        if self.constraint and np.isneginf(logits.max()):
            return NO_TOKEN
        if self.parameters.temperature == 0:
            return _likeliest(logits)
        tokens = self._allowed(logits, position, margin=0.0)
        return int(tokens[0 if len(tokens) == 1 else self._perturbed(logits, tokens, position).argmax()])

    def candidates(
        self, rows: Logits, positions: Sequence[int], recent: Sequence[Sequence[int]], count: int
    ) -> CandidateRows:
        """At most `count` candidates at each of `positions`, ranked by the score whose argmax `sample` would take.

        rows: float32[n, n_vocab], the logits there. recent: of each, as in `sample`; anything if not `reads_text`.

        Tokens that only top-p and min-p cut are candidates, too, with a lower score: these filters act on the draft's
        own distribution here, and the target's may let such a token pass. With a constraint all candidates are allowed
        tokens. Unlikely allowed tokens may be missing, and there may be no candidate at all.
        """
        if self._biases or self.reads_text:
            each = zip(rows, positions, recent, strict=True)
            rows = np.stack([self._constrained(row, position, before, count) for row, position, before in each])
        if self.parameters.temperature == 0:
            tokens, logits = filters.top_k_of_each(rows, count)
            return CandidateRows(tokens, logits.astype(np.float64))
        if self.parameters.top_k > 0:
            return self._proposed(rows, positions, count)
        return CandidateRows.of(
            [self._within_margin(row, position, count) for row, position in zip(rows, positions, strict=True)]
        )

    def _within_margin(self, logits: Logits, position: int, count: int) -> Candidates:
        """The candidates where there is no top-k."""
        if np.isneginf(logits.max()):
            return Candidates(np.empty(0, np.int64), np.empty(0))
        tokens = self._allowed(logits, position, margin=_DRAFT_MARGIN)
        tokens = tokens[logits[tokens] > -np.inf]
        scores = self._perturbed(logits, tokens, position)
        if len(tokens) > count:
            best = np.argpartition(scores, -count)[-count:]
            tokens, scores = tokens[best], scores[best]
        order = np.argsort(-scores, kind="stable")
        return Candidates(tokens[order], scores[order])

    def adjusted(self, logits: Logits, recent: Sequence[int]) -> Logits:
        """float32[n_vocab]: the logits with biases and penalties."""
        if self._biases:
            logits = self._biases.added(logits)
        if not self.parameters.has_penalties or not recent:
            return logits
        return penalized(logits, recent[-self.parameters.repeat_last_n :], self.parameters)

    def scores(self, logits: Logits, position: int, tokens: TokenIds) -> NDArray[np.float64]:
        """float64[len(tokens)]: what `sample` takes the argmax of: the adjusted logit, or logit / T + noise."""
        is_greedy = self.parameters.temperature == 0
        return logits[tokens].astype(np.float64) if is_greedy else self._perturbed(logits, tokens, position)

    @property
    def noise(self) -> SharedNoise | None:
        """The noise that is added to logits / T; None when greedy."""
        return self._noise if self.parameters.temperature > 0 else None

    def permitted(self, text: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """For each of `tokens`, whether the constraint, which there must be, allows it after prompt and text."""
        assert self.constraint is not None
        return [bool(ok) for ok in self.constraint.allowed(text[self._n_prompt :], np.asarray(tokens, np.int64))]

    def distribution(self, logits: Logits, recent: Sequence[int]) -> Distribution:
        """The distribution of `sample` over all seeds, for acceptance rules that compare distributions."""
        logits = self.adjusted(logits, recent)
        if self.parameters.temperature == 0:
            return Distribution(np.array([_likeliest(logits)], np.int64), np.ones(1))
        highest = float(logits.max())
        filters.check(highest)
        tokens = self._filtered(logits)
        weights = np.exp((logits[tokens].astype(np.float64) - highest) / self.parameters.temperature)
        possible = weights > 0
        return Distribution(tokens[possible], weights[possible] / weights.sum())

    def _constrained(
        self, logits: Logits, position: int, recent: Sequence[int], n_candidates: int | None = None
    ) -> Logits:
        """The adjusted logits, with minus infinity for forbidden tokens."""
        logits = self.adjusted(logits, recent)
        if not self.constraint:
            return logits
        written = recent[len(recent) - (position - self._n_prompt) :]
        return masked(logits, partial(self.constraint.allowed, written), self.parameters, n_candidates)

    def _allowed(self, logits: Logits, position: int, margin: float) -> TokenIds:
        """Ids that pass the filters, ascending.

        Without top-k and top-p, tokens whose score is more than `margin` below the likeliest token's are left out too.
        At margin 0 this changes no sample, because such tokens cannot win.
        """
        if self.parameters.top_k == 0 and self.parameters.top_p == 1:
            return self._within_reach(logits, position, margin)
        return self._filtered(logits)

    def _proposed(self, rows: Logits, positions: Sequence[int], count: int) -> CandidateRows:
        """The candidates where there is a top-k. Tokens that top-p or min-p cut rank after the others."""
        likeliest, logits = filters.top_k_of_each(rows, self.parameters.top_k)
        n_found = (logits > -np.inf).sum(axis=1)
        if n_found.all() and n_found.min() == logits.shape[1]:
            return CandidateRows(*self._ranked(likeliest, logits, positions, count))
        each = zip(likeliest[:, None], logits[:, None], positions, n_found.tolist(), strict=True)
        ranked = [self._ranked(ids[:, :n], own[:, :n], [place], count) if n else None for ids, own, place, n in each]
        nothing = Candidates(np.empty(0, np.int64), np.empty(0))
        return CandidateRows.of([Candidates(one[0][0], one[1][0]) if one else nothing for one in ranked])

    def _ranked(
        self, likeliest: TokenIds, logits: Logits, positions: Sequence[int], count: int
    ) -> tuple[TokenIds, NDArray[np.float64]]:
        p, each = self.parameters, np.arange(len(likeliest))[:, None]
        order = likeliest.argsort(axis=1)
        tokens = likeliest[each, order]
        scaled = logits[each, order].astype(np.float64) / p.temperature
        scores = scaled + self._noise.gumbel_of_each(positions, tokens)
        passes = order < filters.n_uncut(logits, p.top_p, p.min_p)[:, None]
        # The first candidate stays the draft's own choice.
        bound = np.where(passes, scores, -np.inf).max(axis=1, keepdims=True) - _ROUNDING
        scores = np.where(passes, scores, np.minimum(scores - _FILTERED_PENALTY, bound))
        if tokens.shape[1] > count:
            best = scores.argpartition(-count, axis=1)[:, -count:]
            tokens, scores = tokens[each, best], scores[each, best]
        order = (-scores).argsort(axis=1, kind="stable")
        return tokens[each, order], scores[each, order]

    def _filtered(self, logits: Logits) -> TokenIds:
        p = self.parameters
        if p.top_k > 0:
            return np.sort(filters.cut(logits, filters.top_k(logits, p.top_k), p.top_p, p.min_p))
        tokens = filters.top_p_of_all(logits, p.top_p) if p.top_p < 1 else np.arange(len(logits), dtype=np.int64)
        return np.sort(filters.min_p(logits, tokens, p.min_p))

    def _within_reach(self, logits: Logits, position: int, margin: float) -> TokenIds:
        """Ids that pass min-p and whose score is at least the likeliest token's less `margin`.

        Such a token has a high logit or large noise, so the noise of all other tokens is never computed.
        """
        temperature = self.parameters.temperature
        largest = filters.group_maxima(logits)
        likeliest = int(filters.above(logits, largest.max(), largest)[0])
        own_noise = float(self._noise.gumbel(position, np.array([likeliest]))[0])
        # The ids to find are those with logit + temperature * noise >= wanted.
        wanted = float(logits[likeliest]) + temperature * (own_noise - margin) - _ROUNDING
        noisy, noise = self._noise.large_noise(position)
        n_in_row = int(np.searchsorted(noisy, len(logits)))  # a draft's row may be shorter than the target's
        noisy, noise = noisy[:n_in_row], noise[:n_in_row]
        noisy = noisy[logits[noisy] >= wanted - temperature * noise]
        tokens = np.union1d(filters.above(logits, wanted - temperature * LARGE_NOISE, largest), noisy)
        return filters.min_p(logits, tokens, self.parameters.min_p)

    def _perturbed(self, logits: Logits, tokens: TokenIds, position: int) -> NDArray[np.float64]:
        scaled = logits[tokens].astype(np.float64) / self.parameters.temperature
        return scaled + self._noise.gumbel(position, tokens)


def logprob(logits: Logits, token: int, n_top: int) -> TokenLogprob:
    """What `logits`, float32[n_vocab], say of `token` and the `n_top` likeliest. Raises LlamaError if one is NaN."""
    highest = float(logits.max())
    filters.check(highest)
    log_total = highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
    top = filters.top_k(logits, n_top).tolist() if n_top else []
    likeliest = tuple((one, float(logits[one]) - log_total) for one in top)
    return TokenLogprob(token, float(logits[token]) - log_total, likeliest)


def _likeliest(logits: Logits) -> int:
    """The id with the highest logit. Raises LlamaError for logits that are no numbers."""
    token = int(logits.argmax())  # the first NaN, if there is any
    filters.check(float(logits[token]))
    return token
