"""What a target's cache holds, and a copy of it outside of llama.cpp, to which the cache can come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specrun.llama.batch import common_prefix
from specrun.llama.heads.target_states import SavedStates
from specrun.llama.rollback import PromptState


@dataclass(frozen=True)
class HeldText:
    """Committed text, and how much of it is in a cache."""

    tokens: list[int]
    n_cached: int  # leading tokens that the cache holds
    any_end: bool  # whether any number of the last tokens can be taken back, as from attention
    prompt: PromptState | None = None  # where the cache can go back to otherwise

    def reusable(self, prompt: list[int]) -> int:
        """How many leading tokens of a prompt need not be decoded again; the first pass always decodes the last."""
        shared = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if self.any_end or shared >= len(self.tokens) - 1:
            return min(shared, self.n_cached)
        return self.prompt.end if self.prompt and self.prompt.end <= shared else 0


@dataclass(frozen=True, eq=False)
class SavedText:
    """A copy of what a cache held."""

    held: HeldText
    state: NDArray[np.uint8]  # [n]: positions, all K and V and recurrent states, as llama.cpp saves them
    for_head: SavedStates | None = None  # the hidden states that a head reads

    @property
    def n_bytes(self) -> int:
        """Bytes of the copy. A token id counts as a Python integer in a list."""
        prompt, for_head = self.held.prompt, self.for_head
        further = (prompt.state.nbytes if prompt else 0) + (for_head.states.nbytes if for_head else 0)
        return self.state.nbytes + further + 36 * len(self.held.tokens)
