"""How the target's cache takes tokens back: attention's cells one by one, recurrent states as far as they were kept.

A recurrent layer has a single state for all tokens so far. llama.cpp keeps older states in two ways, and a third copy
lies outside of it:

    snapshots    the states after the last tokens of a pass, for some architectures (`n_rs_seq`), each as large.
    checkpoint   a second sequence that has the state of some earlier moment, for every architecture. Copying costs
                 nothing; the tokens committed since then are decoded again in front of the next pass.
    prompt state a copy of the state near the end of the prompt, for texts that share it and nothing after it.

Measured for four architectures: states are the same bits in all of these ways, as long as the sizes of passes are of
one class (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specrun.errors import LlamaError
from specrun.llama.batch import Batch, common_prefix
from specrun.llama.context import ALL_SEQUENCES, LlamaContext, SequenceState
from specrun.llama.heads.hidden_states import SavedStates

CHECKPOINT = 1  # the sequence of the checkpoint, where a context has a single text
# Committed tokens after the checkpoint from which they are decoded in a pass of their own, and the checkpoint moves to
# their end. Where a further token costs 2.5 % of a pass, as of streamed weights, 18 would be best.
MOST_PENDING = 16
# The prompt state lies so many tokens before the prompt's end: chat templates write the beginning of an answer, and
# leave its thoughts out of the next prompt, so the two part a few tokens before that end.
PROMPT_TAIL = 16
_KEPT_PASSES = 32  # after so many passes sequences that none of their trees needed are emptied


@dataclass(frozen=True)
class PromptState:
    """A state near the end of a prompt."""

    end: int  # tokens of the prompt
    state: NDArray[np.uint8]  # [n], the recurrent state after them


@dataclass(frozen=True)
class CachedText:
    """Committed text, and how much of it is in a cache."""

    tokens: list[int]
    n_cached: int  # leading tokens that the cache holds
    any_end: bool  # whether any number of the last tokens can be taken back, as from attention
    prompt: PromptState | None = None  # where the cache can go back to otherwise
    least_end: int = 0  # as `TextCache.least_end`
    is_beginning: bool = False  # whether it is what several prompts begin with, and may end within a word

    def reusable(self, prompt: list[int]) -> int:
        """How many leading tokens of a prompt need not be decoded again; the first pass always decodes the last."""
        shared = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if shared >= len(self.tokens) - 1 or (self.any_end and shared >= self.least_end):
            return min(shared, self.n_cached)
        return self.prompt.end if self.prompt and self.prompt.end <= shared else 0


@dataclass(frozen=True, eq=False)
class SavedText:
    """What a cache held, as a copy in memory, or in a file."""

    held: CachedText
    state: SequenceState  # positions, all K and V and recurrent states, as llama.cpp saves them
    for_head: SavedStates | None = None  # the hidden states that a head reads

    @property
    def n_bytes(self) -> int:
        """Bytes of memory. A token id counts as a Python integer in a list."""
        prompt, for_head = self.held.prompt, self.for_head
        further = (prompt.state.nbytes if prompt else 0) + (for_head.states.nbytes if for_head else 0)
        state = 0 if isinstance(self.state, Path) else self.state.nbytes
        return state + further + 36 * len(self.held.tokens)


class TextCache:
    """What a target's context needs of its cache, here where any of the cells can be removed.

    The text is on a sequence for each leaf path of the next trees. Marking a cell costs time for each sequence that it
    is on, so it is on as many only as recent trees had leaves; others copy it when a tree needs them.

    first: the first of the sequences of the context that are for the text. It always holds the text.
    n_sequences: how many hold what is cached; the others are empty.
    max_leaves: most leaf paths that a pass can check, and the number of all these sequences.
    most_back: most tokens of a pass that can be taken back, so that passes have to be small; None for no bound.
    most_pending: most committed tokens that wait in front of a pass; None for no bound.
    drops_padding: whether tokens after the committed text can be dropped without decoding any of it again.
    prompt: the state that was kept near the end of the prompt, where there is one.
    least_end: fewest tokens to which the last ones can be taken back, besides none at all. Of layers that attend to a
        window llama.cpp copies only what tokens after the end see.
    shares_prompts: whether a pass over a chunk of the prompt may have tokens of other texts, too.
    n_checkpoint: tokens of the text whose state the checkpoint has; 0 without one.
    """

    most_back: int | None = None
    most_pending: int | None = None
    drops_padding = True
    prompt: PromptState | None = None
    least_end = 0
    shares_prompts = True
    n_checkpoint = 0

    def __init__(self, context: LlamaContext, first: int, max_leaves: int, least: int = 1) -> None:
        """least: fewest sequences that hold what is cached, as soon as there are any tokens."""
        self._context = context
        self.first = first
        self.max_leaves = max_leaves
        self.n_sequences = self._least = least
        self._n_needed = least  # most leaves of a tree since the number of sequences was last reconsidered
        self._n_passes = 0  # since then

    @property
    def last_sequence(self) -> int:
        """The last sequence that holds the text."""
        return self.first + self.n_sequences - 1

    def count_sequences(self, n_cached: int) -> None:
        """Find the first sequences that hold the `n_cached` tokens, and empty all others."""
        lengths = self._context.sequence_lengths()[self.first : self.first + self.max_leaves]
        holds = lengths == n_cached if n_cached else np.zeros(len(lengths), np.bool_)
        n = max(int(np.append(holds, False).argmin()), 1)
        for seq in np.flatnonzero(lengths[n:]).tolist():
            self._context.remove(self.first + n + seq, 0)
        least = self._least if n_cached else 0
        self._context.copy(self.first, range(self.first + n, self.first + least), 0, n_cached)
        self.n_sequences = max(n, self._least)
        self._n_needed = max(min(self._n_needed, self.n_sequences), self._least)

    def provide_sequences(self, n_leaves: int, n_cached: int) -> None:
        """Let at least `n_leaves` sequences hold what is cached, and not many more than recent trees needed."""
        self._n_needed = max(self._n_needed, n_leaves)
        self._n_passes += 1
        if n_leaves <= self.n_sequences and self._n_passes < _KEPT_PASSES:
            return
        for seq in range(self._n_needed, self.n_sequences):
            self._context.remove(self.first + seq, 0)
        self._context.copy(self.first, range(self.last_sequence + 1, self.first + self._n_needed), 0, n_cached)
        self.n_sequences, self._n_needed, self._n_passes = self._n_needed, max(n_leaves, self._least), 0

    @property
    def n_elsewhere(self) -> int:
        """Cells of the context that other texts have."""
        return 0

    @property
    def takes_back(self) -> bool:
        """Whether anything that a pass writes can be taken back now, so that it may be drafted."""
        return True

    @property
    def last(self) -> int:
        """The text's last cell among those of other texts in the same context; 0 without others."""
        return 0

    def writing(self, batch: Batch, shares: Sequence[tuple[TextCache, int]]) -> AbstractContextManager[None]:  # noqa: ARG002
        """In the block, the context decodes `batch`.

        shares: the texts whose tokens it has, in its order, and how many of each.
        """
        return nullcontext()

    def checkpoint(self, end: int) -> None:
        """Prepare for a pass of which a part may be taken back. The cache holds `end` tokens of the text, no others."""

    def rollback(self, end: int) -> int:
        """Drop what the last pass wrote from position `end` on, as the text goes on from there.

        Returns how many leading tokens the cache then holds; the others up to `end` have to be decoded again.
        """
        self._context.remove(ALL_SEQUENCES, end)
        return end

    def rewind(self, end: int) -> int:
        """The same, where another text goes on from `end`. What is held then does not depend on the plan."""
        if end < self.least_end:
            end = self.least_end = 0
        return self.rollback(end)

    def keep_prompt(self, end: int) -> None:
        """Note that the cache holds the first `end` tokens of a prompt and nothing else."""

    def restore(self, saved: SavedText) -> None:
        """Let the cache, which must be empty, hold a saved text. Raises LlamaError if llama.cpp fails."""
        self._context.set_sequence_state(self.first, saved.state)
        self.prompt = saved.held.prompt
        self.least_end = saved.held.n_cached if self._context.model.has_window else 0

    def clear(self) -> None:
        """Empty the cache."""
        self.least_end = 0
        self.rollback(0)


class RecurrentStates(TextCache):
    """Recurrent states, with or without attention beside them.

    With snapshots, what a pass wrote is taken back at once, up to all tokens but its first. Without, another sequence
    of the context is the checkpoint. It moves only before passes that draft, because llama.cpp copies the whole state
    in the pass after it. A text with neither is decoded plainly.
    """

    drops_padding = False

    def __init__(self, context: LlamaContext, first: int = 0, checkpoint: int | None = None) -> None:
        """checkpoint: its sequence; None for a text without one."""
        TextCache.__init__(self, context, first, 1)
        self._checkpoint_seq = checkpoint
        self.most_back = context.n_snapshots if checkpoint is None else None
        self.most_pending = MOST_PENDING

    def checkpoint(self, end: int) -> None:
        if self._checkpoint_seq is not None and end and self.n_checkpoint != end:
            self._forget_checkpoint()
            self._context.copy(self.first, range(self._checkpoint_seq, self._checkpoint_seq + 1), 0, end)
            self.n_checkpoint = end

    def rollback(self, end: int) -> int:
        n_last = self._context.n_last_pass
        n_behind = self._context.sequence_length(self.first) - end
        # llama.cpp would take back more than that, too, and give a state of another text.
        if n_last is not None and 0 < n_behind <= min(n_last - 1, self._context.n_snapshots):
            self._context.n_last_pass = 0  # first: a second removal is refused, should Ctrl-C come after this one
            self._context.remove(self.first, end)
            return end
        return self._return_to_checkpoint(end) if n_last is None or n_behind else end

    def rewind(self, end: int) -> int:
        """Go back to the prompt's state, or to the beginning: every plan has been there, so the bits depend on none."""
        kept = self.prompt
        if kept and 0 < kept.end <= end:
            with suppress(LlamaError):
                self._context.return_to(self.first, kept.end, kept.state)
                self._forget_checkpoint()
                return kept.end
        self._empty()
        return 0

    def _return_to_checkpoint(self, end: int) -> int:
        checkpoint = self.n_checkpoint
        if not checkpoint or self._checkpoint_seq is None or checkpoint > end:
            return RecurrentStates.rewind(self, end)
        self._context.copy(self._checkpoint_seq, range(self.first, self.first + 1), 0, checkpoint)
        self._context.n_last_pass = 0
        return checkpoint

    def _forget_checkpoint(self) -> None:
        self.n_checkpoint = 0
        if self._checkpoint_seq is not None:
            self._context.remove(self._checkpoint_seq, 0)

    def keep_prompt(self, end: int) -> None:
        if end and (self.prompt is None or self.prompt.end != end):
            self.prompt = None
            self.prompt = PromptState(end, self._context.sequence_state(self.first, recurrent_only=True))

    def clear(self) -> None:
        self._empty()

    def _empty(self) -> None:
        self.n_checkpoint, self.prompt = 0, None
        self._context.remove(ALL_SEQUENCES, 0)
        self._context.n_last_pass = 0


def text_cache(context: LlamaContext) -> TextCache:
    """How the cache of `context`, which has a single text, takes tokens back."""
    n_sequences = context.config.n_seq_max
    if not context.model.is_recurrent:
        return TextCache(context, 0, n_sequences)
    has_checkpoint = not context.n_snapshots and n_sequences > CHECKPOINT
    return RecurrentStates(context, checkpoint=CHECKPOINT if has_checkpoint else None)
