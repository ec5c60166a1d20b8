"""A head's context: it reads each token with a hidden state, and gives a hidden state with each row of logits."""

from __future__ import annotations

import llama_cpp

from specrun.llama.batch import rows_batch
from specrun.llama.context import ContextConfig, HeadSetup, LlamaContext
from specrun.llama.heads import bindings
from specrun.llama.heads.bindings import Floats
from specrun.llama.loaded_model import LlamaModel

_TEXT = 0  # the sequence whose positions what is encoded pretends to go on with


class HeadContext(LlamaContext):
    """The KV cache of a head. setup: see `HeadSetup`.

    llama.cpp gives logits for all tokens of a head's pass or for none: where only some are wanted, the rows belong
    to other tokens. Raises the errors of `LlamaContext`, and LlamaError if this build cannot run heads.
    """

    def __init__(self, model: LlamaModel, config: ContextConfig, setup: HeadSetup) -> None:
        bindings.check()
        super().__init__(model, config, head=setup)
        self.state_width = setup.state_width
        bindings.keep_states(self.handle, masked=True)

    def states(self, n_rows: int) -> Floats:
        """float32[n_rows, state_width]: the head's states behind the tokens of the last pass, all of which had logits.

        A view that the next pass overwrites.
        """
        return bindings.states(self.handle, n_rows, self.state_width)

    def encode(self, rows: Floats) -> Floats:
        """float32[n, state_width]: what the head makes of the target's rows, float32[n, width], before it reads them.

        The cache stays as it is. At most `n_batch` rows.
        """
        n = len(rows)
        if not 0 < n <= self.config.n_batch:  # llama.cpp would end the process
            raise ValueError(f"{n} rows to encode; the context takes 1 to {self.config.n_batch}")
        # llama.cpp checks the positions, though it does not use them.
        batch = rows_batch(rows, int(self.sequence_lengths()[_TEXT]), _TEXT, outputs=True)
        self.compute(llama_cpp.llama_encode, batch.struct, "a head's encoder")
        return self.states(n)
