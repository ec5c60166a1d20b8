"""Several draft sources together: their guesses are pooled by how often each class of evidence has been right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specrun.sampling import SharedNoise, filters
from specrun.speculation.accept import Accepted
from specrun.speculation.sources.lookahead import NgramPool
from specrun.speculation.sources.pooling import Expert, given_noise, pooled
from specrun.speculation.sources.recycling import N_SUCCESSORS, TokenRecycling
from specrun.speculation.sources.source import Source
from specrun.speculation.sources.suffix_automaton import SuffixAutomaton
from specrun.speculation.tree import TokenTree

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
        self._names = list(sources)
        self._sources = list(sources.values())
        self._priors = [source.prior for source in self._sources]
        self._right = [_PRIOR_WEIGHT * prior for prior in self._priors]
        self._seen = [np.full(len(prior), _PRIOR_WEIGHT) for prior in self._priors]
        self._chances = [prior.tolist() for prior in self._priors]  # right / seen, which is read far more often
        self._text: list[int] = []
        self._active: list[int] = []
        self._permitted: Permitted | None = None
        self._noise: SharedNoise | None = None
        # Path -> guesses after it as (token, source, evidence), for the pass that is being drafted.
        self._asked: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}

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
            for source in self._sources:
                source.reset()
            self._text = []
        new = tuple(tokens[len(self._text) :])
        self._text = list(tokens)  # before the sources get it, as after Ctrl-C none may get it twice
        for source in self._sources:
            source.extend(new)
        self._active = [i for i, name in enumerate(self._names) if name in names]
        self._permitted = permitted
        self._noise = noise
        # Keep the guesses that were made during the last pass, after the tokens that were then committed.
        ahead = {path[len(new) :]: asked for path, asked in self._asked.items() if new and path[: len(new)] == new}
        self._asked = ahead

    def children(self, path: Sequence[int], count: int) -> list[tuple[int, float]]:
        """At most `count` tokens that could follow the committed text and `path`, each with its chance, best first."""
        asked = [
            (guess.token, i, guess.evidence) for i in self._active for guess in self._sources[i].guesses(path, count)
        ]
        if asked and self._permitted:
            allowed = self._permitted([*self._text, *path], [token for token, _, _ in asked])
            asked = [entry for entry, ok in zip(asked, allowed, strict=True) if ok]
        self._asked[tuple(path)] = asked
        by_source: dict[int, dict[int, float]] = {}
        for token, i, evidence in asked:
            by_source.setdefault(i, {})[token] = self._chances[i][evidence]
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
        for i in self._active:
            source = self._sources[i]
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
        for i, prior in enumerate(self._priors):
            # Counts decay towards the prior, not towards zero.
            self._right[i] += (1 - _DECAY) * (_PRIOR_WEIGHT * prior - self._right[i])
            self._seen[i] += (1 - _DECAY) * (_PRIOR_WEIGHT - self._seen[i])
        for depth, token in enumerate(committed):
            for guess, i, evidence in self._asked.get(tuple(committed[:depth]), ()):
                self._seen[i][evidence] += 1
                self._right[i][evidence] += guess == token
        self._chances = [(right / seen).tolist() for right, seen in zip(self._right, self._seen, strict=True)]
