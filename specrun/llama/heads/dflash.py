"""DFlash (arXiv 2602.06036): one pass of the head gives the distributions of a whole block of tokens.

The head's cache has a cell for each committed token above the root, made from the states of several of the target's
layers. A draft is one pass over the root and further mask tokens, with attention in both directions: each row is the
distribution of a token so many places after the root, whatever the tokens between are. So a tree over them needs no
further pass: all nodes of a level have the same candidates. DSpark's heads add to each row what the token before it
suggests (`MarkovPart`), so that nodes have candidates of their own, and their first row predicts the token after the
root.
DFlash 2 has a selector that says how well tokens of neighbouring rows follow each other (`SelectorPart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import MARKOV_AFTER, MARKOV_BEFORE
from specrun.errors import ModelFileError
from specrun.llama.batch import Floats, committed_tokens, common_prefix, readable, rows_batch
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, Logits
from specrun.llama.draft import AnyDraft
from specrun.llama.heads import hidden_states
from specrun.llama.heads.hidden_states import TargetStates
from specrun.speculation.drafter import DraftNode
from specrun.speculation.method import HeadKind
from specrun.speculation.tree import ROOT

# Gives rows of a matrix, float32[n, n_columns], in the order in which they are asked for.
Rows = Callable[[Sequence[int] | slice], Floats]


def matrix_in(file: GgufFile, name: str) -> Rows | None:
    """The rows of the matrix with this name; None if the file has none. Raises ModelFileError if its type cannot be
    decoded.
    """
    tensor = file.by_name.get(name)
    if tensor is None:
        return None
    import gguf  # takes a tenth of a second

    path, n_rows = file.shards[tensor.file], tensor.shape[1]
    data = np.memmap(path, np.uint8, "r", tensor.offset, (n_rows, tensor.n_bytes // n_rows))

    def rows(of: Sequence[int] | slice) -> Floats:
        return gguf.quants.dequantize(np.ascontiguousarray(data[of]), kind)

    try:
        kind = gguf.GGMLQuantizationType[tensor.type.upper()]
        rows([0])
    except (KeyError, NotImplementedError) as error:
        what = f"{name} in {path} is in {tensor.type}, which cannot be decoded"
        raise ModelFileError(f"{what}; quantize it to Q8_0") from error
    return rows


def whole_numbers_in(file: GgufFile, name: str) -> NDArray[np.int64] | None:
    """int64[n]: the list of whole numbers with this name; None if the file has none."""
    found = file.by_name.get(name)
    return np.memmap(file.shards[found.file], "<i8", "r", found.offset, found.shape) if found else None


_BEGINNING = 1  # the row of the root, for which a selector has no candidates
# The rows of a whole vocabulary would take longer to gather than a draft pass is worth: with a rank of 256 those of
# 4,096 tokens have 4 MB, and those of 152,000 have 156.
_ALL = 4096  # tokens that can be drafted: up to so many, the logits of all follow the token before
_LIKELIEST = 1024  # of more, only so many of each row; the others, hardly ever drafted, stay as they are


@dataclass(frozen=True)
class Block:
    """What a head drafts at once."""

    size: int  # tokens of the pass, the root included
    mask: int  # the token that stands for those to be drafted
    first: int  # the row that gives the token after the root
    is_causal: bool  # whether rows see only those before them

    @property
    def n_levels(self) -> int:
        """Drafted tokens on a path, at most."""
        return self.size - self.first


class MarkovPart:
    """The part of a DSpark head that says what the token before a place suggests for it, beside the block's row.

    llama.cpp adds it to each row for the row's own likeliest token before. In a tree a level has several tokens before
    it, and here each of them gets the logits that follow it: the difference between two tokens is a product of thin
    matrices, which costs microseconds where a draft pass costs a millisecond.

    before: a row for each token of the vocabulary. after: float32[n_drafted, rank], one for each token that can be
    drafted. drafted: int[n_drafted], these tokens; None where they are the whole vocabulary.
    """

    def __init__(self, before: Rows, after: Logits, drafted: NDArray[np.int64] | None) -> None:
        self._after, self._drafted = after, drafted
        self._row = cache(lambda token: before([token])[0])
        self._levels = np.empty((0, 0), np.float32)
        self._likeliest: list[int] = []  # token that each level was computed for
        self._candidates: dict[int, tuple[NDArray[np.int64] | slice, Logits]] = {}  # and their rows, by level

    def start(self, root: int, levels: Logits) -> None:
        """Take a new block. levels: float32[n_levels, n_vocab], llama.cpp's logits after `root`."""
        self._levels = levels
        self._likeliest = [root, *levels[:-1].argmax(axis=1).tolist()]
        self._candidates.clear()

    def behind(self, level: int, token: int) -> Logits:
        """float32[n_vocab]: the logits of the level where `token` is the token before it."""
        row = self._levels[level]
        if token == self._likeliest[level]:
            return row
        if level not in self._candidates:
            self._candidates[level] = self._candidates_of(row)
        tokens, after = self._candidates[level]
        moved = row.copy()
        moved[tokens] += after @ (self._row(token) - self._row(self._likeliest[level]))
        return moved

    def _candidates_of(self, row: Logits) -> tuple[NDArray[np.int64] | slice, Logits]:
        if len(self._after) <= _ALL:
            return slice(None) if self._drafted is None else self._drafted, self._after
        logits = row if self._drafted is None else row[self._drafted]
        best = np.argpartition(logits, -_LIKELIEST)[-_LIKELIEST:]
        return best if self._drafted is None else self._drafted[best], self._after[best]


def markov_part(file: GgufFile) -> MarkovPart | None:
    """The Markov part in a head's file; None for a head without it. Raises ModelFileError if it cannot be decoded."""
    before, after = matrix_in(file, MARKOV_BEFORE), matrix_in(file, MARKOV_AFTER)
    if before is None or after is None:
        return None
    return MarkovPart(before, after(slice(None)), whole_numbers_in(file, "d2t"))


class SelectorPart:
    """The selector of a DFlash 2 head: how well the likeliest tokens of a block's rows follow each other.

    llama.cpp computes it in the pass of the block. For each row it gives the row's likeliest tokens, the candidates,
    and a score of each of them after each candidate of the row before. Its own tools follow the best score from row to
    row, which is one path; the same table has all others, so a tree is grown from it without a further pass.

    n_candidates: the likeliest tokens of a row that it looks at.
    """

    def __init__(self, context: LlamaContext, n_candidates: int) -> None:
        hidden_states.keep(context.handle, masked=False)  # llama.cpp puts the table where other heads have states
        self._context = context
        self._n = n_candidates
        self._levels = np.empty((0, 0), np.float32)
        self._candidates = np.empty((0, n_candidates), np.int64)
        self._scores = np.empty((0, n_candidates, n_candidates), np.float32)  # by level, token before, candidate

    def start(self, _root: int, levels: Logits) -> None:
        """Take the block of the last pass. levels: float32[n_levels, n_vocab], its logits without the selector."""
        n_rows = _BEGINNING + len(levels)
        table = hidden_states.kept(self._context.handle, n_rows, self._context.model.n_embd_out)[_BEGINNING:]
        self._candidates = table[:, : self._n].astype(np.int64)
        scores = table[:, self._n : self._n + self._n**2]
        self._scores = scores.reshape(len(levels), self._n, self._n).copy()
        self._levels = levels

    def behind(self, level: int, token: int) -> Logits:
        """float32[n_vocab]: the scores of the level's candidates where `token` is the token before; -inf elsewhere.

        A token that was no candidate has no scores, as one of the text itself may be: the row stays as it is.
        """
        # All scores of the first level are after the root.
        before = [0] if level == 0 else np.flatnonzero(self._candidates[level - 1] == token)
        if len(before) == 0:
            return self._levels[level]
        row = np.full_like(self._levels[level], -np.inf)
        row[self._candidates[level]] = self._scores[level, before[0]]
        return row


class BlockDraft(AnyDraft):
    """Such a head as a draft. The nodes of a tree take no cells, as no pass is made for them.

    target: the target's context, which is closed later. layers: those of the target that the head reads.
    n_vocab: as in `DraftContext`. pairs: what the head says of tokens that follow each other; None for DFlash.
    states: those that the target has to note.
    """

    kind: HeadKind = "dflash"

    def __init__(
        self,
        context: LlamaContext,
        target: LlamaContext,
        layers: tuple[int, ...],
        n_vocab: int,
        block: Block,
        pairs: MarkovPart | SelectorPart | None,
    ) -> None:
        llama_cpp.llama_set_causal_attn(context.handle, block.is_causal)
        super().__init__(context, n_vocab)
        self.block = block
        # There are several times as many numbers as in a state of another head, and half of their digits will do.
        width = len(layers) * target.model.n_embd
        self.states = TargetStates(target, layers, context.config, width, dtype=np.float16)
        self._pairs = pairs
        self._levels: Logits = np.empty((0, n_vocab), np.float32)  # by depth of the node that they follow
        self._depths: dict[int, int] = {}  # of the nodes that can get children

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `DraftModel`. The target must have read all before the root. A pass drafts the block after it."""
        if self._is_unfinished:
            self.reset()
        with self._changing():
            above_root = list(tokens[:-1])
            kept = common_prefix(self._tokens, above_root)
            self.context.remove(ALL_SEQUENCES, kept)
            self._tokens = above_root[:kept]
            while kept < len(above_root):
                end = min(kept + self.context.config.n_batch, len(above_root))
                rows = self.states.of(above_root, kept, end)
                dimensions = self.context.model.n_dimensions
                batch = rows_batch(rows, kept, self._whole, outputs=False, n_dimensions=dimensions)
                self.context.compute(llama_cpp.llama_decode, batch.struct, "a pass of a head")
                kept = end
                self._tokens = above_root[:kept]
            size = min(self.block.size, self.context.config.n_ctx - kept)
            block = readable(tokens[-1:], self.n_vocab) + [self.block.mask] * (size - 1)
            rows = self.context.decode(committed_tokens(block, kept, 1, n_outputs=size))
            self._levels = rows[self.block.first :, : self.n_vocab]
            self.context.remove(ALL_SEQUENCES, kept)
            if self._pairs:
                self._pairs.start(tokens[-1], self._levels)
            self._depths = {ROOT: 0}
        return self._pairs.behind(0, tokens[-1]) if self._pairs else self._levels[0]

    def reset(self) -> None:
        with self._changing():
            self._tokens, self._depths = [], {}
            self.context.remove(ALL_SEQUENCES, 0)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """See `DraftModel`: nodes whose children are in the block can be expanded, once their parents were."""
        last = len(self._levels) - 1
        known = (place for place, parent in enumerate(parents) if self._depths.get(parent, last) < last)
        return list(islice(known, width))

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """See `DraftModel`. The parents must have been expanded before."""
        depths = [self._depths[node.parent] + 1 for node in nodes]
        self._depths.update(zip((node.id for node in nodes), depths, strict=True))
        if self._pairs is None:
            return self._levels[depths]
        return np.stack([self._pairs.behind(depth, node.token) for depth, node in zip(depths, nodes, strict=True)])
