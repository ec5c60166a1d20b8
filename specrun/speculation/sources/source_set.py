"""Several draft sources together: their guesses are pooled by how often each class of evidence has been right.

Each expert alone is calibrated; together they say more (docs/adr/0006). If their errors are independent, chances
multiply (a logarithmic opinion pool, or product of experts). The weight of a named token is

    BASE * product over experts of (chance / BASE if the expert names it, else unnamed_factor * rest) ** trust

where rest is the chance that an expert leaves to tokens it does not name. The weight of all tokens that no expert
names is the product of rest ** trust. Chances are weights divided by the sum of all weights. `scripts/bench_sources.py`
measures the effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import SharedNoise, filters
from specrun.speculation.accept import Accepted
from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling
from specrun.speculation.sources.suffix_automaton import SuffixAutomaton
from specrun.speculation.tree import TokenTree

BASE = 0.25  # about how often a named token comes
_LEAST_REST = 0.02  # least value of `rest`, as no expert is certain
# With this share the chances of 7,555 guesses at T=0.8 fitted best: log loss 0.282 with 0, 0.270 with 0.3, 0.272 with
# 0.5, 0.381 with 1 (embedded pair, the prompts of scripts/bench_sources.py).
_NOISE_SHARE = 0.3
_MOST_OF_SIBLINGS = 0.98  # largest sum of the chances of siblings
_PRIOR_WEIGHT = 4.0  # number of guesses that the prior chance of a class counts as
_DECAY = 0.99  # factor on counts after each pass, so that about the last hundred passes count
_MOST = 0.98  # largest sum of one source's chances of siblings
# Most sources look at the same text, so two that agree say little more than a single source, and weak guesses should
# not outvote strong guesses. The trust in a source is its share of all sources' chances to this power; at 1 all sources
# together count as a single opinion.
_TRUST_POWER = 0.7
_UNNAMED_FACTOR = 0.4  # `Expert.unnamed_factor` of every source
_ROWS_LEARNED = 64  # most nodes of one pass that sources learn from

# (text, tokens) -> for each of the tokens, whether it may follow the text.
Permitted = Callable[[Sequence[int], Sequence[int]], Sequence[bool]]


class Source(Protocol):
    """Guesses what follows a text. The same calls in the same order give the same guesses."""

    prior: NDArray[np.float64]  # the chance that a guess of each class of evidence is right, before any was counted

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text: first the prompt, then what each pass committed."""
        ...

    def reset(self) -> None:
        """A new text begins. What the source took from other texts stays."""
        ...

    def guesses(self, path: Sequence[int], count: int) -> dict[int, int]:
        """At most `count` (1 or more) tokens that could follow the committed text and `path`, best first.

        Each has its class of evidence, a place of `prior`, for which it is counted how often it is right.
        """
        ...


@dataclass(frozen=True)
class Expert:
    """The chances that one draft model or source gives to the next token."""

    chances: Mapping[int, float]  # by token
    trust: float = 1.0  # 1 if its errors are independent of those of other experts, less if not
    unnamed_factor: float = 1.0  # factor on `rest` for a token that only other experts name

    @property
    def rest(self) -> float:
        """The chance of all tokens that it does not name."""
        return max(1.0 - sum(self.chances.values()), _LEAST_REST)


def pooled(experts: Sequence[Expert]) -> dict[int, float]:
    """The pooled chance of every named token. Experts without tokens are ignored; a single expert stays as it is."""
    experts = [expert for expert in experts if expert.chances]
    if len(experts) < 2:
        return dict(experts[0].chances) if experts else {}
    named = {token: BASE for expert in experts for token in expert.chances}
    others = 1.0
    for expert in experts:
        rest = expert.rest
        unnamed_factor = (expert.unnamed_factor * rest) ** expert.trust
        for token in named:
            chance = expert.chances.get(token)
            named[token] *= unnamed_factor if chance is None else (chance / BASE) ** expert.trust
        others *= rest**expert.trust
    total = math.fsum(named.values()) + others
    return {token: weight / total for token, weight in named.items()}


def given_noise(chances: Mapping[int, float], noise: SharedNoise, position: int) -> dict[int, float]:
    """The chances that sampling at `position` takes each token, whose noise is known before the pass (`SharedNoise`).

    The target takes the largest of log q + noise. The largest sum of all other tokens has a Gumbel distribution around
    log(1 - q), so a token with noise g is above it with the chance exp(-(1 - q) / q * exp(-g)), whose mean over g is q.

    A calibrated chance is not q, but the mean of the q of many guesses: some are copies, which are certain whatever the
    noise is, and some have no chance with any noise. So only a share of the chance follows the noise.

    Trees without a draft model commit 1.3 to 2 % more tokens a pass by this (T=0.8, docs/benchmarks/sources.md).

    chances: by token, regardless of the noise.
    """
    if not chances:
        return {}
    q = np.clip(np.array(list(chances.values())), 1e-9, 1.0 - 1e-9)
    g = noise.gumbel(position, np.array(list(chances), np.int64))
    known = (1.0 - _NOISE_SHARE) * q + _NOISE_SHARE * np.exp(-(1.0 - q) / q * np.exp(-g))
    known *= min(_MOST_OF_SIBLINGS / known.sum(), 1.0)
    return dict(zip(chances, known.tolist(), strict=True))


class _Counted:
    """A source, and of the guesses of each class of evidence how many were right, of how many."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.right = _PRIOR_WEIGHT * source.prior
        self.seen = np.full(len(source.prior), _PRIOR_WEIGHT)
        self.chances: list[float] = source.prior.tolist()  # right / seen, which is read far more often

    def fade(self) -> None:
        """Counts decay towards the prior, not towards zero."""
        self.right += (1 - _DECAY) * (_PRIOR_WEIGHT * self.source.prior - self.right)
        self.seen += (1 - _DECAY) * (_PRIOR_WEIGHT - self.seen)


class SourceSet:
    """Sources that draft together: their guesses are pooled to one distribution."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        """sources: by the names that methods use; None for all that there are."""
        if sources is None:
            sources = {
                "suffix-automaton": SuffixAutomaton(),
                "lookahead": NgramPool(),
                "token-recycling": TokenRecycling(),
            }
        self._sources = {name: _Counted(source) for name, source in sources.items()}
        self._active: list[_Counted] = []
        self._text: list[int] = []
        self._permitted: Permitted | None = None
        self._noise: SharedNoise | None = None
        # Path -> guesses after it as (token, source, evidence), for the pass that is being drafted.
        self._asked: dict[tuple[int, ...], list[tuple[int, _Counted, int]]] = {}

    def follow(
        self,
        tokens: Sequence[int],
        names: Sequence[str],
        permitted: Permitted | None = None,
        noise: SharedNoise | None = None,
    ) -> None:
        """Begin to draft after the committed text `tokens`; a text that does not continue the last one is a new text.

        names: the sources to use. permitted: if given, forbidden tokens are not guessed. noise: what the target adds to
            its logits; None when greedy.
        """
        if list(tokens[: len(self._text)]) != self._text:
            for counted in self._sources.values():
                counted.source.reset()
            self._text = []
        new = tuple(tokens[len(self._text) :])
        self._text = list(tokens)  # before the sources get it, as after Ctrl-C none may get it twice
        for counted in self._sources.values():
            counted.source.extend(new)
        self._active = [counted for name, counted in self._sources.items() if name in names]
        self._permitted = permitted
        self._noise = noise
        # Keep the guesses that were made during the last pass, after the tokens that were then committed.
        ahead = {path[len(new) :]: asked for path, asked in self._asked.items() if new and path[: len(new)] == new}
        self._asked = ahead

    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """At most `count` tokens that could follow the committed text and `path`, each with its chance, best first."""
        asked = [
            (token, counted, evidence)
            for counted in self._active
            for token, evidence in counted.source.guesses(path, count).items()
        ]
        if asked and self._permitted:
            allowed = self._permitted([*self._text, *path], [token for token, _, _ in asked])
            asked = [entry for entry, ok in zip(asked, allowed, strict=True) if ok]
        self._asked[tuple(path)] = asked
        by_source: dict[_Counted, dict[int, float]] = {}
        for token, counted, evidence in asked:
            by_source.setdefault(counted, {})[token] = counted.chances[evidence]
        total = sum(sum(chances.values()) for chances in by_source.values())
        experts = []
        for chances in by_source.values():
            own = sum(chances.values())
            # Classes of evidence are counted separately, so the chances of siblings may sum to more than 1.
            scale = min(_MOST / own, 1.0)
            scaled = {token: scale * chance for token, chance in chances.items()}
            experts.append(Expert(scaled, (own / total) ** _TRUST_POWER, _UNNAMED_FACTOR))
        all_chances = pooled(experts)
        if self._noise:
            all_chances = given_noise(all_chances, self._noise, len(self._text) + len(path))
        return sorted(all_chances.items(), key=lambda item: -item[1])[:count]

    def learn(self, tree: TokenTree, rows: NDArray[np.float32], accepted: Accepted) -> None:
        """Learn from a pass. rows: float32[len(tree), n_vocab], the target's logits after each node."""
        self._count(accepted.tokens)
        for source in (counted.source for counted in self._active):
            if isinstance(source, TokenRecycling):
                on_path = set(accepted.path)
                nodes = [node for node in range(len(tree)) if node not in on_path][: _ROWS_LEARNED - len(on_path)]
                nodes += accepted.path  # last, because the last of equal tokens counts
                top = np.array([filters.top_k(rows[node], N_SUCCESSORS) for node in nodes], np.int32)
                source.learn(tree.tokens[nodes], top)
            elif isinstance(source, NgramPool):
                leaves = [node for node, below in enumerate(tree.children) if not below][:_ROWS_LEARNED]
                source.learn([[*tree.tokens[tree.path_to(node)].tolist(), int(rows[node].argmax())] for node in leaves])

    def _count(self, committed: Sequence[int]) -> None:
        for counted in self._sources.values():
            counted.fade()
        for depth, token in enumerate(committed):
            for guess, counted, evidence in self._asked.get(tuple(committed[:depth]), ()):
                counted.seen[evidence] += 1
                counted.right[evidence] += guess == token
        for counted in self._sources.values():
            counted.chances = (counted.right / counted.seen).tolist()
