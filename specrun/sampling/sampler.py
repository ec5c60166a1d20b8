"""From a row of logits and its position to the sampled token, or to ranked candidates for a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import filters
from specrun.sampling.adjustments import NO_TOKEN, Biases, Constraint, masked, penalized
from specrun.sampling.filters import Logits, TokenIds
from specrun.sampling.noise import LARGE_NOISE, SharedNoise
from specrun.sampling.parameters import SamplingParameters

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
        self._constraint = constraint
        self._n_prompt = n_prompt

    def recent(self, tokens: Sequence[int]) -> list[int]:
        """The end of a text that `sample` needs: what penalties look at, with a constraint all behind the prompt."""
        n_wanted = self.parameters.repeat_last_n if self.parameters.has_penalties else 0
        n_wanted = max(n_wanted, len(tokens) - self._n_prompt if self._constraint else 0)
        return list(tokens[max(len(tokens) - n_wanted, 0) :])

    def sample(self, logits: Logits, position: int, recent: Sequence[int]) -> int:
        """The token at `position`, or NO_TOKEN if the constraint allows none.

        logits: float32[n_vocab]. recent: what the method `recent` returns for the text before `position`.
        Raises LlamaError for logits that are no numbers.
        """
        logits = self._constrained(logits, position, recent)
        if self._constraint and np.isneginf(logits.max()):
            return NO_TOKEN
        if self.parameters.temperature == 0:
            return _likeliest(logits)
        tokens = self._allowed(logits, position, margin=0.0)
        return int(tokens[0 if len(tokens) == 1 else self._perturbed(logits, tokens, position).argmax()])

    def candidates(self, logits: Logits, position: int, recent: Sequence[int], count: int) -> Candidates:
        """At most `count` candidates at `position`, ranked by the score whose argmax `sample` would take.

        Tokens that only top-p and min-p cut are candidates, too, with a lower score: these filters act on the draft's
        own distribution here, and the target's may let such a token pass. With a constraint all candidates are allowed
        tokens. Unlikely allowed tokens may be missing, and there may be no candidate at all.
        """
        logits = self._constrained(logits, position, recent, count)
        if self._constraint and np.isneginf(logits.max()):
            return Candidates(np.empty(0, np.int64), np.empty(0))
        if self.parameters.temperature == 0:
            tokens = _possible(logits, filters.top_k(logits, count))
            return Candidates(tokens, logits[tokens].astype(np.float64))
        if self.parameters.top_k > 0:
            tokens, scores = self._proposed(logits, position)
        else:
            tokens = _possible(logits, self._allowed(logits, position, margin=_DRAFT_MARGIN))
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

    @property
    def is_constrained(self) -> bool:
        """Whether a constraint limits what may be written."""
        return self._constraint is not None

    def permitted(self, text: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """For each of `tokens`, whether the constraint, which there must be, allows it after prompt and text."""
        assert self._constraint is not None
        return [bool(ok) for ok in self._constraint.allowed(text[self._n_prompt :], np.asarray(tokens, np.int64))]

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
        if not self._constraint:
            return logits
        written = recent[len(recent) - (position - self._n_prompt) :]
        return masked(logits, partial(self._constraint.allowed, written), self.parameters, n_candidates)

    def _allowed(self, logits: Logits, position: int, margin: float) -> TokenIds:
        """Ids that pass the filters, ascending.

        Without top-k and top-p, tokens whose score is more than `margin` below the likeliest token's are left out too.
        At margin 0 this changes no sample, because such tokens cannot win.
        """
        if self.parameters.top_k == 0 and self.parameters.top_p == 1:
            return self._within_reach(logits, position, margin)
        return self._filtered(logits)

    def _proposed(self, logits: Logits, position: int) -> tuple[TokenIds, NDArray[np.float64]]:
        """Ids that pass top-k, ascending, and their scores. Tokens that top-p or min-p cut rank behind the others."""
        by_likelihood = _possible(logits, filters.top_k(logits, self.parameters.top_k))
        n_passing = len(self._cut(logits, by_likelihood))
        order = np.argsort(by_likelihood)
        tokens = by_likelihood[order]
        scores = self._perturbed(logits, tokens, position)
        if n_passing < len(tokens):
            passes = order < n_passing
            # The first candidate stays the draft's own choice.
            scores[~passes] = np.minimum(scores[~passes] - _FILTERED_PENALTY, scores[passes].max() - _ROUNDING)
        return tokens, scores

    def _filtered(self, logits: Logits) -> TokenIds:
        p = self.parameters
        if p.top_k > 0:
            return np.sort(self._cut(logits, filters.top_k(logits, p.top_k)))
        tokens = filters.top_p_of_all(logits, p.top_p) if p.top_p < 1 else np.arange(len(logits), dtype=np.int64)
        return np.sort(filters.min_p(logits, tokens, p.min_p))

    def _cut(self, logits: Logits, tokens: TokenIds) -> TokenIds:
        """The first of `tokens`, likeliest first, that pass top-p and min-p."""
        return filters.cut(logits, tokens, self.parameters.top_p, self.parameters.min_p)

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


def _possible(logits: Logits, tokens: TokenIds) -> TokenIds:
    """The `tokens` that the constraint allows: forbidden tokens have a logit of minus infinity."""
    return tokens[logits[tokens] > -np.inf]
