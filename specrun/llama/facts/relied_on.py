"""The list of facts about llama.cpp that specrun relies on, and what goes without each of them."""

from __future__ import annotations

from dataclasses import replace

from specrun.llama import offload_threshold
from specrun.llama.facts import bits, cells, names
from specrun.llama.facts.fact import Fact, why_not
from specrun.llama_settings import LlamaSettings

CELLS = Fact(
    "cells of a pass",
    "llama.cpp puts the tokens of a pass into the lowest free cells of the KV cache, in the order of the batch",
    "requests are answered one at a time",
    cells.check,
)
BOTH_ORDERS = Fact(
    "weights in both orders",
    "a tensor can be pointed to the weights in the file or to the re-ordered ones between two passes",
    "prompts are read more slowly than they could be",
    bits.check_orders,
)
EXACT_TYPES = Fact(
    "bit-exact weights",
    "Q8_0 weights give a token the same bits in passes of every size, on both sides of every block of KV cells",
    "texts are exact up to near-ties unless --exact is given",
    bits.check_exact_types,
)
BOUNDARIES = Fact(
    "kernels of attention",
    "sizes of passes that give a token the same bits behind 768 cells do so behind any number of cells",
    "--exact decodes plainly",
    bits.check_boundaries,
)
TILED = Fact(
    "variables of tiled kernels",
    "llama.cpp reads from the environment which passes tiled kernels compute",
    "tiled kernels stay as llama.cpp chooses them",
    names.check_tiled,
)
THRESHOLD = Fact(
    "variable of offloading",
    "llama.cpp's GPU backends read from the environment which passes copy weights to the GPU",
    "passes copy weights to the GPU as llama.cpp chooses",
    names.check_threshold,
)
HIDDEN_STATES = Fact(
    "hidden states",
    "functions without a place in the public header give the rows that enter a layer of the target",
    "trained heads cannot draft",
    names.check_hidden_states,
)
ARCHITECTURES = Fact(
    "tables of architectures",
    "llama.cpp treats the architectures of architectures.toml as that file says",
    "trained heads cannot draft",
    names.check_architectures,
)
LAYERS_IN_TURN = Fact(
    "layers in turn",
    "llama.cpp computes a model layer by layer, and uses the weights of a layer only while it computes that layer",
    "weights that do not fit are left to the system's page cache",
    bits.check_layers_in_turn,
)

FACTS = (CELLS, BOTH_ORDERS, EXACT_TYPES, BOUNDARIES, TILED, THRESHOLD, HIDDEN_STATES, ARCHITECTURES, LAYERS_IN_TURN)


def supported(settings: LlamaSettings) -> tuple[LlamaSettings, list[str]]:
    """The settings without those whose fact does not hold for this build, and a line for the user for each of them.

    Settles the threshold of offloading for this process, as no check may load a model before. Raises UsageError if the
    process has another threshold.
    """
    needed = {"tiled": TILED, "offload_min_batch": THRESHOLD, "file_order_from": BOTH_ORDERS}
    notices = []
    for name, fact in needed.items():
        if fact is BOTH_ORDERS:
            offload_threshold.settle(settings.offload_min_batch)
        if getattr(settings, name) is not None and (why := why_not(fact, settings)):
            settings = replace(settings, **{name: None})
            notices.append(fact.notice(why))
    return settings, notices
