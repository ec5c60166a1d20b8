"""DFlash (arXiv 2602.06036): one pass of the head gives the distributions of a whole block of tokens.

The head's cache has a cell for each committed token above the root, made from the states of several of the target's
layers. A draft is one pass over the root and further mask tokens, with attention in both directions: each row is the
distribution of a token so far behind the root, whatever the tokens between are. So a tree over them needs no further
pass: all nodes of a level have the same candidates. DSpark's heads add to each row what the token before it suggests
(`heads.markov`), so that nodes have candidates of their own, and their first row predicts the token behind the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import llama_cpp
import numpy as np

from specrun.llama.batch import committed_tokens, common_prefix, readable, rows_batch
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, HeadSetup, LlamaContext, Logits
from specrun.llama.draft import CacheChange
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.heads.markov import MarkovPart
from specrun.llama.heads.target_states import TargetStates, layer_inputs
from specrun.llama.loaded_model import LlamaModel
from specrun.speculation.drafter import DraftNode
from specrun.speculation.method import HeadKind
from specrun.speculation.tree import ROOT

_TEXT = 0  # the only sequence


@dataclass(frozen=True)
class Block:
    """What a head drafts at once."""

    size: int  # tokens of the pass, the root included
    mask: int  # the token that stands for those to be drafted
    first: int  # the row that gives the token behind the root
    is_causal: bool  # whether rows see only those before them

    @property
    def n_levels(self) -> int:
        """Drafted tokens on a path, at most."""
        return self.size - self.first


class BlockContext(LlamaContext):
    """The KV cache of such a head. target: the target's context, whose matrices it may use. Close it later."""

    def __init__(self, model: LlamaModel, config: ContextConfig, target: LlamaContext, is_causal: bool) -> None:
        bindings.check()
        super().__init__(model, config, head=HeadSetup(target, 0))
        llama_cpp.llama_set_causal_attn(self.handle, is_causal)

    def read(self, rows: Floats, start: int) -> None:
        """Read the target's rows, float[n, width], of the tokens at positions `start`, ... Raises LlamaError."""
        batch = rows_batch(rows, start, _TEXT, outputs=False)
        self._is_counted = False
        self.compute(llama_cpp.llama_decode, batch.struct, "a pass of a head")


class BlockDraft:
    """Such a head as a draft. The nodes of a tree take no cells, as no pass is made for them.

    states: the rows of the target's layers. n_vocab: as in `DraftContext`. markov: a DSpark head's.
    """

    kind: HeadKind = "dflash"

    def __init__(
        self, context: BlockContext, states: TargetStates, n_vocab: int, block: Block, markov: MarkovPart | None
    ) -> None:
        self.context = context
        self.n_vocab = n_vocab
        self.block = block
        self._target = states
        self._markov = markov
        self._text: list[int] = []  # what the cache holds
        self._levels: Logits = np.empty((0, n_vocab), np.float32)  # by depth of the node that they follow
        self._depths: dict[int, int] = {}  # of the nodes that can get children
        self._change = CacheChange()

    def start(self, tokens: Sequence[int]) -> Logits:
        """Bring the cache to all of `tokens` but the last, the root, and draft the block behind it.

        Returns float32[n_vocab], the logits after the root. The target must have read all before the root.
        """
        if self._change.is_unfinished:
            self.reset()
        with self._change:
            above_root = list(tokens[:-1])
            kept = common_prefix(self._text, above_root)
            self.context.remove(ALL_SEQUENCES, kept)
            self._text = above_root[:kept]
            while kept < len(above_root):
                end = min(kept + self.context.config.n_batch, len(above_root))
                self.context.read(self._target.of(above_root, kept, end), kept)
                kept = end
                self._text = above_root[:kept]
            size = min(self.block.size, self.context.config.n_ctx - kept)
            block = readable(tokens[-1:], self.n_vocab) + [self.block.mask] * (size - 1)
            batch = committed_tokens(block, kept, 1, n_outputs=size)
            self._levels = self.context.decode(batch)[self.block.first :, : self.n_vocab]
            self.context.remove(ALL_SEQUENCES, kept)
            if self._markov:
                self._markov.start(tokens[-1], self._levels)
            self._depths = {ROOT: 0}
        return self._levels[0]

    def rows_along(self, tokens: Sequence[int], skip: int) -> Iterator[Logits]:
        """As `DraftContext.rows_along`, with a pass for each token."""
        self.reset()
        return (self.start(tokens[: end + 1]) for end in range(skip, len(tokens)))

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        with self._change:
            self._text, self._depths = [], {}
            self.context.remove(ALL_SEQUENCES, 0)

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        """Places, ascending, of at most `width` nodes whose children are in the block, and whose parents are expanded.

        parents: the parent of every node that may still be expanded, in the order in which the nodes would be.
        """
        last = len(self._levels) - 1
        known = (place for place, parent in enumerate(parents) if self._depths.get(parent, last) < last)
        return [place for place, _ in zip(known, range(width), strict=False)]

    def expand(self, nodes: Sequence[DraftNode]) -> Logits:
        """float32[len(nodes), n_vocab]: the logits after each of `nodes`, whose parents were expanded before."""
        depths = [self._depths[node.parent] + 1 for node in nodes]
        self._depths.update(zip((node.id for node in nodes), depths, strict=True))
        if self._markov is None:
            return self._levels[depths]
        return np.stack([self._markov.behind(depth, node.token) for depth, node in zip(depths, nodes, strict=True)])


def dflash_draft(
    context: BlockContext,
    target: LlamaContext,
    layers: tuple[int, ...],
    n_vocab: int,
    block: Block,
    markov: MarkovPart | None,
) -> tuple[BlockDraft, TargetStates]:
    """The draft that a DFlash head's context is of, and the states that the target has to note for it.

    target: the target's context. layers: the layers of the target that the head reads. The others: as in `BlockDraft`.
    """
    reader = layer_inputs(target, layers)
    config = context.config
    # There are several times as many numbers as in a state of another head, and half of their digits will do.
    states = TargetStates(reader, None, config.n_batch, reader.width, config.n_ctx, np.float16)
    return BlockDraft(context, states, n_vocab, block, markov), states
