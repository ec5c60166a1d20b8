"""Whether weights of another type would be faster on this machine.

llama.cpp's kernels are timed on small made-up models of the usual types, among them the target's own. What a pass of
the target would take in another type is its measured time, times the quotient of the two made-up models' times. The
predicted tokens a pass of every fixed plan are taken to stay the same.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from specrun.catalog.gguf_file import GgufFile
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.profiles.profile import Profile
from specrun.speculation.registry import METHODS

# Types of the first layer, of V and the last feed-forward matrix in the second layer, and of the output, by the names
# of llama.cpp's quantizer, which mixes types about so.
_MIXTURES = {
    "IQ4_NL": ("IQ4_NL", "IQ4_NL", "Q6_K"), "Q4_0": ("Q4_0", "Q4_0", "Q6_K"), "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"), "Q6_K": ("Q6_K", "Q6_K", "Q6_K"), "Q8_0": ("Q8_0", "Q8_0", "Q8_0"),
    "BF16": ("BF16", "BF16", "BF16"), "F16": ("F16", "F16", "F16"),
}  # fmt: skip
_EMBD, _FF, _HEADS, _KV_HEADS, _VOCAB = 2048, 5632, 32, 8, 4096  # 55 to 200 MB in two layers
_SIZES = (1, 2, 4, 8, 16, 32)  # tokens of the passes that are timed
_CTX = 64  # context length in tokens at which costs are compared
_ROUNDS = 6  # the first is the warm-up
_WORTH = 1.2  # gain below which nothing is said: made-up models predicted real ones to within a tenth
_ALIGNMENT = 32  # bytes, of tensors in a GGUF file

Ratios = Mapping[int, float]
"""Time of a pass in another type, as a share of its time in the target's type, by tokens of the pass."""


def faster_type(profile: Profile, target: Path) -> str | None:
    """A sentence for the user if another type would be clearly faster, else None.

    profile: of a target whose weights all lie in RAM; others depend on more than the CPU's kernels.
    """
    file = GgufFile.read(target)
    own, own_bits = file.quantization, 8 * file.n_bytes / file.n_parameters
    if profile.regime != "in RAM" or own not in _MIXTURES or file.n_experts:
        return None
    ratios = measured_ratios(own, profile.settings)
    gains = {name: gain(profile, of_type) for name, of_type in ratios.items()}
    best = max(gains, key=lambda name: gains[name], default=own)
    if gains.get(best, 0.0) < _WORTH:
        return None
    return (
        f"weights in {best} would probably be {gains[best]:.1f} times as fast on this machine as these in {own} with "
        f"{own_bits:.1f} bits each; the text would be another one"
    )


def gain(profile: Profile, ratios: Ratios) -> float:
    """Rate of the best fixed plan in another type over that of the best in this one, where it is smallest."""
    target = profile.costs.target

    def saved(n: int) -> float:
        return target.ms(n, _CTX) * (1 - float(np.interp(n, list(ratios), list(ratios.values()))))

    gains = []
    for rows in profile.predictions.values() or [[]]:
        fixed = [row for row in rows if not METHODS[row.method].is_adaptive and row.tokens_per_second > 0]
        passes = [(row.tokens_per_pass, 1e3 * row.tokens_per_pass / row.tokens_per_second, row.budget) for row in fixed]
        passes.append((1.0, profile.costs.plain_ms(_CTX), 1))
        before = max(tokens / ms for tokens, ms, _ in passes)
        # A pass takes at least a tenth of its time: the target's share of a predicted pass is not known exactly.
        behind = max(tokens / max(ms - saved(n), ms / 10) for tokens, ms, n in passes)
        gains.append(behind / before)
    return min(gains)


def measured_ratios(own: str, settings: LlamaSettings) -> dict[str, Ratios]:
    """The ratios of every type that is no larger than `own`, a key of `_MIXTURES`.

    settings: the target's. Other types have their weights re-ordered, as specrun runs them by default.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        paths = {name: _write(Path(folder) / f"{name}.gguf", *mixture) for name, mixture in _MIXTURES.items()}
        n_bytes = {name: path.stat().st_size for name, path in paths.items()}
        config = ContextConfig(
            n_ctx=_CTX + max(_SIZES), n_seq_max=1, n_batch=_CTX, n_outputs=max(_SIZES), settings=settings
        )
        contexts = {}
        for name in [own, *(name for name in paths if name != own and n_bytes[name] <= n_bytes[own])]:
            repack = settings.repack if name == own else True
            model = stack.enter_context(LlamaModel(paths[name], LlamaSettings(repack=repack)))
            contexts[name] = stack.enter_context(LlamaContext(model, config))
            contexts[name].decode(committed_tokens(_tokens(_CTX), 0, 1, n_outputs=0))
        ms: dict[tuple[str, int], list[float]] = {}
        # Types take turns within a size, so that none finds its weights in the CPU's cache.
        for _, n, name in itertools.product(range(_ROUNDS), _SIZES, contexts):
            ms.setdefault((name, n), []).append(_pass_ms(contexts[name], n))
    others = [name for name in contexts if name != own]
    return {name: {n: _ratio(ms[name, n], ms[own, n]) for n in _SIZES} for name in others}


def _ratio(ms: Sequence[float], own_ms: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ms[1:], own_ms[1:], strict=True))


def _tokens(count: int) -> list[int]:
    return list(range(1, count + 1))


def _pass_ms(context: LlamaContext, n: int) -> float:
    batch = committed_tokens(_tokens(n), _CTX, 1, n_outputs=1)
    batch.outputs[:] = True
    started = time.perf_counter()
    context.decode(batch)
    ms = (time.perf_counter() - started) * 1e3
    context.remove(ALL_SEQUENCES, _CTX)
    return ms


def _write(path: Path, most: str, some: str, output: str) -> Path:
    """Write a llama of two layers whose matrices are zeros, which take no disk; kernels are as fast as on others.

    most, some, output: the types of its matrices, see `_MIXTURES`.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(_VOCAB)
    writer.add_context_length(_CTX + max(_SIZES))
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(2)
    writer.add_feed_forward_length(_FF)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    n_bytes = 0

    def add(name: str, shape: tuple[int, ...], kind: str) -> None:
        nonlocal n_bytes
        ggml_type = gguf.GGMLQuantizationType[kind]
        n_weights, block = gguf.GGML_QUANT_SIZES[ggml_type]
        size = int(np.prod(shape)) // n_weights * block
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), size, raw_dtype=ggml_type)
        n_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT

    keys = _EMBD // _HEADS * _KV_HEADS
    add("token_embd", (_VOCAB, _EMBD), most)
    for layer, other in enumerate((most, some)):
        for name, shape, kind in [
            ("attn_norm", (_EMBD,), "F32"),
            ("attn_q", (_EMBD, _EMBD), most),
            ("attn_k", (keys, _EMBD), most),
            ("attn_v", (keys, _EMBD), other),
            ("attn_output", (_EMBD, _EMBD), most),
            ("ffn_norm", (_EMBD,), "F32"),
            ("ffn_gate", (_FF, _EMBD), most),
            ("ffn_up", (_FF, _EMBD), most),
            ("ffn_down", (_EMBD, _FF), other),
        ]:
            add(f"blk.{layer}.{name}", shape, kind)
    add("output_norm", (_EMBD,), "F32")
    add("output", (_VOCAB, _EMBD), output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // _ALIGNMENT) * _ALIGNMENT
    os.truncate(path, start + n_bytes)
    return path
