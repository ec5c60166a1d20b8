"""The target's KV cache in speculation: score a whole token tree in one pass, then keep the accepted path.

Cells always stay in the order of their positions (docs/adr/0001): a hole in front of an accepted token would change the
order of later sums of attention, and with it last bits. A tree is decoded in depth-first order, likeliest path first.
From the accepted path only the nodes in consecutive cells after the root are kept; the other tokens are decoded again
at the front of the next pass. Padding (docs/exactness.md) lies in the last cells, and is dropped with the tree.

Where a model has recurrent states, a pass checks one path, on one sequence, and its cache may have to go back further
than to the end of what was accepted (`rollback`). Then many committed tokens may be pending, which are decoded in a
pass of their own. They are not padded there, but wait until they are as many as a pass of the class has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specrun.errors import ContextFullError, LlamaError
from specrun.llama.batch import common_prefix
from specrun.llama.context import LlamaContext, Logits
from specrun.llama.heads.hidden_states import TargetStates
from specrun.llama.pass_bounds import PassBounds
from specrun.llama.rollback import PROMPT_TAIL, CachedText, SavedText, text_cache
from specrun.llama.scoring import Part, chunk_of, join_parts, tree_of
from specrun.llama.slot_cells import CellLedger, SlotCells
from specrun.speculation.tree import ROOT, TokenTree, n_in_order


class TargetContext(PassBounds):
    """The committed text of one generation and the target's KV cache of it.

    tokens: all committed text; its last token is the root of the next tree.
    n_cached: number of leading tokens that the cache holds; between passes it holds nothing else.
    n_chunk: committed tokens that a coming pass reads without a tree, as of a prompt; 0 if nothing is left to be read.
        It says nothing after a pass that failed.
    states: keeps the hidden states of the committed text for a head; None without one. It has those of what is cached.
    """

    def __init__(self, context: LlamaContext, slot: SlotCells | None = None) -> None:
        """slot: this text's cells, where several texts share the context; None if it has the context for itself."""
        super().__init__(context.config, slot or text_cache(context))
        self.context = context
        self.n_vocab, self.max_leaves = context.model.n_vocab, self.cells.max_leaves
        self.slot = slot
        self.tokens: list[int] = []
        self.n_cached = 0
        self.states: TargetStates | None = None
        self._begin = 0  # the first of this text's tokens in the last pass over it
        self._chunks: Iterator[int] = iter(())  # the tokens of each further chunk
        self.n_chunk = 0

    @property
    def n_pending(self) -> int:
        """Number of committed tokens that the next pass decodes again in front of the root."""
        n_waiting = max(len(self.tokens) - 1, 0) - self.n_cached
        return n_waiting - self.n_alone(n_waiting)

    @property
    def has_states(self) -> bool:
        """Whether a head can draft, for which it needs the states of all tokens before the root."""
        return self.states is None or len(self.states.tokens) >= len(self.tokens) - 1

    def room(self) -> int:
        """Most nodes, root included, of the next tree, given the cells, batch and rows of logits that are left.

        The batch always has room for the root: fewer tokens are pending than the last tree had nodes or, with recurrent
        states, than are decoded in a pass of their own.
        """
        config, n_pending = self.context.config, self.n_pending
        most_back = self.cells.most_back if self.cells.takes_back else 0
        n_before = max(len(self.tokens) - 1, 0) - n_pending
        most = min(config.n_ctx - self.cells.n_elsewhere - n_before, config.n_batch)
        if self.is_cut_at_blocks:
            most = min(most, self.block_end(n_before) - n_before)
        largest = self.padding.largest(most if most_back is None else min(most, n_pending + 1 + most_back))
        return min(largest - n_pending, self.padding.largest(config.n_outputs))

    def pass_size(self, tree: TokenTree) -> int:
        """Tokens of the next pass over `tree`: pending ones and padding are included."""
        return self.padding.padded(self.n_pending + len(tree))

    def set_prompt(self, tokens: list[int]) -> int:
        """Make `tokens` the committed text and decode all but the last, reusing the prefix that the cache shares.

        Whatever interrupted a pass or a commit before, the cache is right afterwards. Returns the number of tokens that
        were to be decoded. Raises ValueError for no tokens, ContextFullError if they do not fit.
        """
        n_to_decode = self.begin_prompt(tokens)
        self._read_chunks()
        return n_to_decode

    def begin_prompt(self, tokens: list[int], pause: int = 0, paused: Callable[[], object] = lambda: None) -> int:
        """The same, by passes of `score_together` as long as there is a chunk; `n_cached` says how far it came.

        paused: called when `pause` tokens, or slightly fewer, are read.
        """
        if not tokens:
            raise ValueError("an empty prompt")
        end = len(tokens) - 1
        shared = min(common_prefix(self.tokens, tokens), end)
        goes_on = shared >= len(self.tokens) - 1
        # The cache holds at least what is noted as cached, in this moment too: Ctrl-C may come between any two lines.
        self.n_cached = kept = min(shared, self.n_cached)
        self.tokens = list(tokens)
        self.n_cached = kept = self.cells.rollback(kept) if goes_on else self.cells.rewind(kept)
        self.cells.count_sequences(kept)
        self._chunks = self._chunks_of_prompt(shared, pause, paused, end)
        self._has_read_chunk()
        return end - kept

    def _read_chunks(self) -> None:
        while self.n_chunk:
            score_together([], [self])

    def _has_read_chunk(self) -> None:
        """Note that the chunk was decoded, and look for the next one."""
        self.n_chunk = 0
        self.n_chunk = next(self._chunks, 0)

    def _chunks_of_prompt(self, shared: int, pause: int, paused: Callable[[], object], end: int) -> Iterator[int]:
        # Shared tokens that are still pending are decoded first, on their own. After plain decoding the cache would
        # hold them already, so new text is cut into the same chunks whichever plan wrote the text before it.
        yield from self._chunks_to(shared, self.largest_pass)
        if shared < pause < end:
            yield from self._chunks_to(pause, self.prompt_call())
            paused()
        if not self.cells.drops_padding and end - PROMPT_TAIL > shared:
            yield from self._chunks_to(end - PROMPT_TAIL, self.prompt_call())
            self.cells.keep_prompt(self.n_cached)
        yield from self._chunks_to(end, self.prompt_call())

    def checkpoint(self) -> None:
        """Let `drop_tree` come back to what is cached now, without decoding anything again, until the next prompt."""
        self.cells.keep_prompt(self.n_cached)
        self.cells.checkpoint(self.n_cached)

    def _chunks_to(self, end: int, largest: int) -> Iterator[int]:
        """The tokens of each chunk of committed text up to `end`. A pass must read it before the next is asked for."""
        n_ctx = self.context.config.n_ctx
        if end > n_ctx:
            raise ContextFullError(f"{end} tokens do not fit the context of {n_ctx}; give a larger --ctx-size")
        while self.n_cached < end:
            n = self.whole(min(largest, end - self.n_cached))
            if n == 0:
                break
            yield n
            if self.states:
                places = self._begin + np.arange(n)
                self.states.note(self.n_cached, self.tokens[self.n_cached : self.n_cached + n], places)
            self.n_cached = self.cells.rollback(self.n_cached + n)

    def score(self, tree: TokenTree) -> Logits:
        """As `score_together`. Raises ContextFullError if the tree has more than `room()` nodes."""
        return score_together([(self, tree)])[0]

    def prepare(self, tree: TokenTree) -> Part:
        """What the next pass, which must follow at once, has of this text. Raises the errors of `score`."""
        if tree.tokens[ROOT] != self.tokens[-1] or self.n_cached >= len(self.tokens):
            raise ValueError("the root is not the pending last token")
        if len(tree) > 1 and len(tree) > self.room():  # there is always room for the root
            raise ContextFullError(f"a tree of {len(tree)} nodes does not fit; there is room for {self.room()}")
        if tree.n_leaves > self.max_leaves:
            raise ValueError(f"a tree of {tree.n_leaves} leaf paths; a pass checks {self.max_leaves}")
        n_alone = self.n_alone(len(self.tokens) - 1 - self.n_cached)
        if n_alone:
            self._chunks = self._chunks_to(self.n_cached + n_alone, self.largest_pass)
            self._has_read_chunk()
            self._read_chunks()
        self.cells.provide_sequences(tree.n_leaves, self.n_cached)
        part = tree_of(self.tokens, self.n_cached, tree, self.cells)
        if self.padding.padded(len(part.batch)) > part.n_before + 1:
            self.cells.checkpoint(self.n_cached)
        return part

    def commit(self, tree: TokenTree, path: list[int], next_token: int) -> None:
        """Commit the accepted `path` (node indices, root first) of the tree scored last, and then `next_token`."""
        root_position = len(self.tokens) - 1
        kept = n_in_order(path)
        end = root_position + kept
        if self.states:
            # Pending tokens were in no pass before, where the last tokens of a prompt wait for a pass of a whole class.
            n_before = root_position - self.n_cached
            tokens = [*self.tokens[self.n_cached : root_position], *tree.tokens[path].tolist()]
            places = np.append(np.arange(n_before), n_before + np.array(path))
            self.states.note(self.n_cached, tokens, self._begin + places)
        n_cached = self.cells.rollback(end)
        if kept > 1:
            first = self.cells.first
            self.context.copy(first, range(first + 1, first + self.cells.n_sequences), root_position + 1, end)
        self.n_cached = n_cached
        self.tokens.extend(int(tree.tokens[node]) for node in path[1:])
        self.tokens.append(next_token)

    def held(self, is_copied: bool = False) -> CachedText:
        """What the cache holds, or would after `save` and `restore`. The tokens are the text itself, which changes."""
        cells, is_bound = self.cells, is_copied and self.context.model.has_window
        any_end, prompt = cells.drops_padding and not is_bound, None if is_bound else cells.prompt
        return CachedText(self.tokens, self.n_cached, any_end, prompt, cells.least_end)

    @property
    def n_saved_bytes(self) -> int:
        """About the bytes that `save` would take now."""
        return self.context.sequence_bytes(self.cells.first)

    def save(self, path: Path | None = None) -> SavedText | None:
        """What the cache holds, in memory or a file; None after a failed pass. Raises LlamaError and OSError."""
        first = self.cells.first
        if self.context.n_last_pass is None or self.context.sequence_length(first) != self.n_cached:
            return None
        held = replace(self.held(is_copied=True), tokens=list(self.tokens), least_end=0)
        if path:
            self.context.write_sequence(first, path)
        state = path or self.context.sequence_state(first)
        return SavedText(held, state, self.states.save() if self.states else None)

    def restore(self, saved: SavedText) -> None:
        """Hold what was saved. Raises LlamaError if llama.cpp fails, or saved another text; then nothing is held."""
        self.reset()
        try:
            self.cells.restore(saved)
            if self.context.sequence_length(self.cells.first) != saved.held.n_cached:
                raise LlamaError("it is of another text")  # a file that was replaced since it was checked
        except BaseException:
            self.reset()
            raise
        if self.states and saved.for_head:
            self.states.restore(saved.for_head)
        self.tokens, self.n_cached = list(saved.held.tokens), saved.held.n_cached
        self.cells.count_sequences(self.n_cached)

    def move_down(self) -> None:
        """Move the text, which must be a slot's, into the lowest free cells. Raises LlamaError if llama.cpp fails."""
        if self.n_cached:
            assert self.slot
            self.slot.move_down()
            self.cells.count_sequences(self.n_cached)

    def drop_tree(self) -> None:
        """Remove from the cache what the last `score` wrote, without committing anything."""
        self.n_cached = self.cells.rollback(self.n_cached)

    def reset(self) -> None:
        """Forget all text and empty the cache."""
        self.tokens = []
        self.n_cached = 0
        self._chunks, self.n_chunk = iter(()), 0
        self.cells.clear()
        self.cells.count_sequences(0)


def score_together(
    texts: Sequence[tuple[TargetContext, TokenTree]], reading: Sequence[TargetContext] = (), least: int = 0
) -> list[Logits]:
    """One pass over the pending tokens and the tree of each text, whose root must be its last committed token.

    reading: texts of which the pass has the next chunk of the prompt. least: tokens of the pass at least, with
    padding.

    Several targets must be slots of one context and padded alike. Returns for each of `texts`
    float32[len(tree), n_vocab], a view that the next pass overwrites; row i predicts the token after node i. Raises
    ContextFullError if the tokens do not fit together.
    """
    first = texts[0][0] if texts else reading[0]
    parts = [target.prepare(tree) for target, tree in texts]
    parts += [chunk_of(target.tokens, target.n_cached, target.n_chunk, target.cells) for target in reading]
    batch, shares, begins, rows = join_parts(parts, first, least)
    with first.cells.writing(batch, shares):
        logits = first.context.decode(batch)
    for target, begin in zip([*(target for target, _ in texts), *reading], begins, strict=True):
        target._begin = begin
    for target in reading:
        target._has_read_chunk()
    return [logits[places] for places in rows[: len(texts)]]


def target_slots(context: LlamaContext) -> list[TargetContext]:
    """One target for each text that `context` has room for."""
    slots = CellLedger(context).slots
    return [TargetContext(context, slot) for slot in slots] or [TargetContext(context)]
