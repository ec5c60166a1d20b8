"""What a tensor of a GGUF model is, by its name."""

from __future__ import annotations

import re

_LAYER = re.compile(r"blk\.(\d+)\.")
# LLM_FFN_EXPS_REGEX in llama.cpp's common.h: the routed experts, which --n-cpu-moe keeps in RAM. Shared experts, which
# every token uses, are named `_shexp`.
EXPERT_PATTERN = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
INPUTS = (EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")


def layer_of(tensor: str) -> int | None:
    """Index of the layer that a tensor belongs to; None if it belongs to no layer."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def is_expert(tensor: str) -> bool:
    """Whether a tensor holds routed experts, e.g. `blk.0.ffn_up_exps.weight`."""
    return bool(re.search(EXPERT_PATTERN, tensor))
