"""The size of a head's context, and the memory that it takes beside the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import MARKOV_AFTER, Head
from specrun.llama.context import ContextConfig
from specrun.speculation.method import Plan

# Tokens of a pass of a head. It reads prompts in so many at once, and llama.cpp keeps logits of all of them: with
# 152,000 tokens of a vocabulary, 39 MB. Chosen by hand.
_PASS = 64
_FLOAT_BYTES = 4


def head_config(config: ContextConfig, plans: Sequence[Plan]) -> ContextConfig:
    """The size of a head's context, where a draft model would have `config`: its passes are small ones.

    llama.cpp ends the process in the first pass of a head that has more sequences than tokens of a pass.
    """
    n_batch = max(_PASS, *(plan.width for plan in plans))
    return replace(
        config,
        n_seq_max=min(config.n_seq_max, n_batch),
        n_batch=n_batch,
        n_outputs=n_batch,
        settings=replace(config.settings, batch_size=None),
    )


def states_bytes(head: Head, file: GgufFile, config: ContextConfig, plans: Sequence[Plan]) -> int:
    """Bytes in RAM of hidden states, of the logits of a head's passes, and of a DSpark head's Markov part as numbers.

    file: the head's.
    config: of the target's context. plans: those that will run. llama.cpp keeps the target's states of a whole call for
    each layer that is read.
    """
    of_token = max(len(head.target_layers), 1) * head.target_width
    # A DFlash head's states are the rows themselves, in half precision.
    of_text = config.n_ctx * (of_token // 2 if head.kind == "dflash" else file.n_embd)
    of_call = config.n_call * of_token
    of_markov = sum(tensor.n_parameters for tensor in file.tensors if tensor.name == MARKOV_AFTER)
    return _FLOAT_BYTES * (of_text + of_call + head_config(config, plans).n_batch * file.n_vocab + of_markov)
