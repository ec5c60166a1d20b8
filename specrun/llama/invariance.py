"""Finds by measurement the sizes of passes that give a token the same bits, in its logits and in the KV cache.

First, passes of many sizes are run over the same tokens, and sizes with the same results form a group. Then the classes
that these groups suggest are tried as they will be used: padded passes over one token against padded passes over chains
and trees of several sizes.

The bytes of K, V and recurrent states are compared too: a difference there shows in the logits only hundreds of tokens
later.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specrun import clock
from specrun.llama.context import Logits
from specrun.llama.pass_bounds import BLOCK
from specrun.llama.target import TargetContext
from specrun.llama_settings import LlamaSettings
from specrun.speculation.planning.pass_sizes import MOST_PADDED, PLAIN_ONLY, PassSizes, best_rate
from specrun.speculation.tree import ROOT, TokenTree

# llama.cpp reads KV cells in blocks, and changes kernels at 512 cells. The compared tokens lie on both sides of a
# boundary between two blocks, the third if the context is long enough. That other boundaries need no comparison on the
# CPU is checked once for each build (`facts.bits.check_boundaries`). A GPU divides attention by the number of cells, so
# there the passes of several sizes lie in one block, and classes are tried at several boundaries: after odd and even
# numbers of blocks, and multiples of three.
_BOUNDARY = 3 * BLOCK
_FURTHER_BOUNDARIES = (5 * BLOCK, 6 * BLOCK, 9 * BLOCK)
# For targets whose plain pass takes up to so many milliseconds: how many tokens are compared, in passes of which sizes.
# These are some 100, 50 and 20 passes, the first two at most 6 to 8 seconds. Kernels change at small sizes and at
# multiples of 4, 8, 16 and 32, so all small sizes are among them, and both sides of the multiples. Sizes above the
# number of tokens n are at least 2 n - 1 (`_twice`).
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 18, 22, 24, 31, 32, 63, 64)
_FEW_SIZES = (1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 16, 32, 64)
_MULTIPLES = (1, 2, 4, 8, 16, 32, 64)  # of which all sizes of a class may be
_EFFORTS = ((60.0, 32, _SIZES), (150.0, 16, _FEW_SIZES), (float("inf"), 4, _FEW_SIZES))


def large_sizes(settings: LlamaSettings) -> PassSizes:
    """Sizes that lie in a class of every type of weights (docs/exactness.md): from 8 tokens on, where tiled kernels
    begin unless the settings let them begin later.
    """
    return PassSizes(-(-max(settings.tiled_from or 0, 8) // 4) * 4, 4)


@dataclass(frozen=True)
class Survey:
    """What passes of several sizes over the same tokens gave."""

    groups: tuple[tuple[int, ...], ...]  # sizes whose passes gave equal bits, ascending
    ms: Mapping[int, float]  # milliseconds of a pass by its tokens

    @property
    def classes(self) -> list[PassSizes]:
        """The classes that the groups suggest, the class with the fastest passes first."""
        # All plans must get the same class, so a size that only some of them have does not count.
        ms = {n: ms for n, ms in self.ms.items() if n in _SIZES}
        return sorted(classes_of(self.groups), key=lambda sizes: (sizes == PLAIN_ONLY, -best_rate(sizes, ms)))


def exact_sizes(
    target: TargetContext, tokens: Sequence[int], largest: int, quick: bool = False, boundary: int | None = None
) -> tuple[PassSizes, Survey]:
    """The class of sizes with the fastest passes whose results are the same bits. Empties the cache.

    PLAIN_ONLY if passes of no size above 1 are the same whatever else is in the pass. tokens: a text to decode,
    repeated where it is too short. largest: tokens of the largest pass to be run. quick, boundary: see `Comparison`.
    """
    comparison = Comparison(target, tokens, largest, quick, boundary)
    try:
        survey = comparison.survey()
        tried = (one for sizes in survey.classes for one in (sizes, replace(sizes, in_order=True)))
        tried = (sizes for sizes in tried if target.can_pad(sizes))
        found = (sizes for sizes in tried if sizes == PLAIN_ONLY or comparison.holds(sizes))
        return next(found, PLAIN_ONLY), survey
    finally:
        target.reset()


def holds(sizes: PassSizes, target: TargetContext, tokens: Sequence[int], largest: int) -> bool:
    """Whether passes of this class give a token the same bits. It takes a tenth of the passes of `exact_sizes`, whose
    parameters these are. Empties the cache.
    """
    if not target.can_pad(sizes):
        return False
    try:
        return Comparison(target, tokens, largest).holds(sizes)
    finally:
        target.reset()


class Comparison:
    """Compares passes over the same tokens after the same text.

    quick: compare fewer tokens in passes of fewer sizes. This is always done for slow targets.
    boundary: a number of cells, a multiple of 256, on both sides of which the tokens lie, or the last such multiple
        that the context has. None for the usual one, and on a GPU for further ones.
    """

    def __init__(
        self,
        target: TargetContext,
        tokens: Sequence[int],
        largest: int,
        quick: bool = False,
        boundary: int | None = None,
    ) -> None:
        self._target = target
        self._is_one_path = target.max_leaves == 1
        config = target.context.config
        largest = min(max(largest, _SIZES[-1]), config.n_batch, config.n_outputs, (config.n_ctx - 1) // 2)
        # Where a pass checks one path, the last pass goes beyond the compared tokens.
        further = largest + _EFFORTS[0][1] if self._is_one_path else 0
        last = (config.n_ctx - largest - 1) // BLOCK * BLOCK
        boundaries = [min(boundary or _BOUNDARY, last)]
        if config.settings.gpu_layers and boundary is None:
            boundaries += [at for at in _FURTHER_BOUNDARIES if at <= min(last, config.n_ctx - further - 1)]
        before = [at - _SIZES[-1] // 4 for at in boundaries]
        self._starts = [max(min(at, config.n_ctx - further - 1), 1) for at in before]
        self._start = max(self._starts[0] - BLOCK // 2, 1) if config.settings.gpu_layers else self._starts[0]
        self._text = [tokens[i % len(tokens)] for i in range(self._starts[-1] + further + 2 * largest)]
        if self._is_one_path:
            target.reset()
            largest = min(largest, target.room())
        plain_ms = float("inf")
        for _ in range(2):
            self._fill(self._start)
            plain_ms = min(plain_ms, self._timed(TokenTree.root_only(self._text[self._start]))[1])
            target.drop_tree()
        efforts = _EFFORTS[1:] if quick else _EFFORTS
        n, sizes = next((n, sizes) for most_ms, n, sizes in efforts if plain_ms < most_ms)
        self._n_compared = n
        fitting = {size for size in (*sizes, largest) if size <= largest}
        self._sizes = sorted(size for size in fitting if self._is_one_path or not n < size < 2 * n - 1)

    def _timed(self, tree: TokenTree) -> tuple[Logits, float]:
        """The logits of a pass over `tree`, and its milliseconds."""
        started = clock.now()
        rows = self._target.score(tree)
        return rows, (clock.now() - started) * 1e3

    def _fill(self, start: int) -> None:
        """Bring the cache to the tokens before the compared tokens."""
        self._target.set_prompt(self._text[: start + 1])

    def survey(self) -> Survey:
        """Run passes of every size, without padding, and compare what they give.

        A size whose cache cannot be compared belongs to the only group with the same logits, or to none.
        """
        results, ms = {}, {}
        for size in self._sizes:
            results[size], ms[size] = self._passes(size)
        groups: dict[tuple[bytes, bytes | None], list[int]] = {}
        for size, result in sorted(results.items(), key=lambda item: item[1][1] is None):
            alike = [other for other in groups if other[0] == result[0]]
            key = alike[0] if result[1] is None and len(alike) == 1 else result
            groups.setdefault(key, []).append(size)
        return Survey(tuple(sorted(tuple(sorted(group)) for group in groups.values())), ms)

    def _passes(self, size: int) -> tuple[tuple[bytes, bytes | None], float]:
        """Digests of the logits for the compared tokens, in passes over `size` tokens, and of the cache after them;
        and the milliseconds of one pass. The last pass may go beyond these tokens: where it checks one path, nothing of
        it is taken back, and there is no digest of the cache.
        """
        target, n = self._target, self._n_compared
        digest = hashlib.blake2b()
        done, ms = 0, float("inf")
        self._fill(self._start)
        while done < n:
            text = self._text[self._start + done :]
            is_twice = size > n and not self._is_one_path
            tree = _twice(text, n, size) if is_twice else TokenTree.chain(text[:size])
            rows, pass_ms = self._timed(tree)
            ms = min(ms, pass_ms)
            digest.update(rows[: n - done].tobytes())
            if is_twice and rows[1 - n :].tobytes() != rows[1:n].tobytes():
                digest.update(b"the place in a pass matters %d" % size)
            n_kept = size if self._is_one_path else min(size, n - done)
            target.commit(tree, list(range(n_kept)), text[n_kept])
            done += n_kept
        state = hashlib.blake2b(target.context.sequence_state(0).data).digest() if done == n else None
        return (digest.digest(), state), ms

    def holds(self, sizes: PassSizes) -> bool:
        """Whether padded passes over one token give the same bits as padded passes over chains and trees."""
        target = self._target
        before, target.padding = target.padding, sizes
        try:
            for start in self._starts:
                alone = self._written(start, [1] * self._n_compared)
                if any(self._written(start, counts) != alone for counts in self._real_tokens(sizes)):
                    return False
            return True
        finally:
            target.padding = before

    def _real_tokens(self, sizes: PassSizes) -> list[list[int]]:
        """The tokens without padding of the passes over chains and trees that are compared."""
        n, largest = self._n_compared, self._sizes[-1]
        some = [sizes.least, 2, sizes.least + 1, 3, 1, sizes.least + sizes.multiple, 5]
        fitting = [count for count in some if count in range(2, (sizes.most or largest) + 1)]
        most = sizes.largest(largest)
        return [[fitting[i % len(fitting)] for i in range(n)] if fitting else [1] * n, [most] * n]

    def _written(self, start: int, counts: Sequence[int]) -> bytes:
        """A digest of logits and cache when the compared tokens are committed in passes over so many nodes."""
        target, text, n = self._target, self._text, self._n_compared
        self._fill(start)
        digest = hashlib.blake2b()
        done = 0
        for i, count in enumerate(counts):
            if done == n:
                break
            at = start + done
            is_chain = i % 2 == 1 or self._is_one_path
            tree = tree_along(text[at : at + min(count, target.room())], is_chain)
            path = true_path(tree)[: n - done]
            path = path[: target.n_exact(path, at)]
            digest.update(target.score(tree)[path].tobytes())
            done += len(path)
            target.commit(tree, path, text[start + done])
        # Committed tokens that still wait for a pass are decoded, as the next text would have it.
        target.set_prompt(text[: start + n + 1])
        if self._is_one_path and target.padding.least > 1:
            # Some may still wait for a pass of the class, so that states lie at different places of the text. What the
            # next pass gives depends on them all the same.
            digest.update(target.score(TokenTree.root_only(text[start + n])).tobytes())
        else:
            digest.update(target.context.sequence_state(0).data)
        return digest.digest()


def _twice(text: Sequence[int], n: int, size: int) -> TokenTree:
    """A tree of `size` nodes: the text as a chain, and its first `n` tokens again as the last nodes, on one root."""
    first, again = list(text[: size - n + 1]), list(text[1:n])
    parents = [*range(-1, len(first) - 1), ROOT, *range(len(first), size - 1)]
    return TokenTree.build(first + again, parents, [-float(i) for i in range(size)])


def tree_along(tokens: Sequence[int], is_chain: bool) -> TokenTree:
    """A tree over a text's next tokens: a chain of them, or of all but the last, with a likelier wrong first node."""
    if is_chain or len(tokens) < 3:
        return TokenTree.chain(tokens)
    nodes = [tokens[0], tokens[0], *tokens[1:-1]]
    return TokenTree.build(nodes, [-1, ROOT, ROOT, *range(2, len(nodes) - 1)], [-float(i) for i in range(len(nodes))])


def true_path(tree: TokenTree) -> list[int]:
    """The nodes of the text: of two siblings, the second."""
    path = [ROOT]
    while tree.children[path[-1]]:
        path.append(tree.children[path[-1]][-1])
    return path


def classes_of(groups: Sequence[Sequence[int]]) -> list[PassSizes]:
    """The classes that fit the measured groups of sizes with the same bits; each measured size is in a group.

    A class has no bound if it holds for all larger sizes that were measured. Powers of two are taken as single sizes.
    """
    measured = sorted(size for group in groups for size in group)
    found: list[PassSizes] = []
    for group in groups:
        for least in sorted(group):
            fitting = [_class_from(least, multiple, group, measured) for multiple in _MULTIPLES if not least % multiple]
            widest = max(fitting, key=lambda sizes: sizes.most or math.inf)
            if widest.is_single:
                is_wanted = least == 1 or (least in _MULTIPLES and len(group) == 1)
            else:
                is_wanted = all((known.multiple, known.most) != (widest.multiple, widest.most) for known in found)
            if is_wanted and least <= MOST_PADDED:
                found.append(widest)
    return found


def _class_from(least: int, multiple: int, group: Sequence[int], measured: Sequence[int]) -> PassSizes:
    """The class that begins at `least` and goes on until a measured multiple is not in the group."""
    larger = [size for size in measured if size >= least and size % multiple == 0]
    end = next((i for i, size in enumerate(larger) if size not in group), None)
    if larger[:end] == [least]:
        return PassSizes.only(least)
    return PassSizes(least, multiple, None if end is None else larger[end - 1])
