"""Facts about bits: which weights a pass is computed with, and which sizes of passes give a token the same logits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts import tiny_model
from specrun.llama.loaded_model import LlamaModel
from specrun.llama_settings import LlamaSettings

# Numbers of cells that a text's next tokens cross. llama.cpp reads K and V in blocks of 256 cells and takes kernels for
# long contexts from 512 on; classes of sizes are measured at 768 (`invariance`), and used at all.
_BOUNDARIES = (256, 512, 768, 1280, 1536, 2304)
_MEASURED_AT = 768
_SIZES = (1, 2, 3, 8, 32, 64)  # tokens of a pass
_N_COMPARED = 8  # tokens, the first tokens of larger passes
_LEAST = 8  # tokens from which passes take weights as they are in the file
_EXACT = LlamaSettings(type_k="f16", type_v="bf16", flash_attn="on")


def check_orders(settings: LlamaSettings) -> str | None:
    """Compare passes that switch between both orders of weights with passes over weights that lie in one order."""
    kinds = {
        "file": replace(settings, repack=False),
        "reordered": replace(settings, repack=True),
        "both": replace(settings, repack=True, file_order_from=_LEAST),
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model.random(Path(folder) / "orders.gguf", "Q4_K")
        for name, chosen in kinds.items():
            with _context(path, replace(chosen, threads=1), 256) as context:
                if name == "both" and (why := context.model.why_one_order):
                    return why
                found[name] = [_rows(context, 0, n) for n in (4, 16, 4)]
    if found["both"] != [found["reordered"][0], found["file"][1], found["reordered"][2]]:
        return "this llama.cpp gave other logits when weights were taken from the file"
    return None


def check_exact_types(settings: LlamaSettings) -> str | None:
    """Compare passes of several sizes on both sides of each boundary, with the cache types of exact passes."""
    for boundary, groups in _groups(_EXACT.over(settings)).items():
        if len(groups) > 1:
            return f"passes of different sizes gave other logits behind {boundary} tokens"
    return None


def check_boundaries(settings: LlamaSettings) -> str | None:
    """Compare which sizes have the same bits at one boundary with those at the others, with llama.cpp's cache types."""
    found = _groups(LlamaSettings(type_k="f16", type_v="f16", flash_attn="on").over(settings))
    other = [boundary for boundary in found if found[boundary] != found[_MEASURED_AT]]
    if other:
        return f"attention behind {other[0]} tokens depends otherwise on the size of a pass than behind {_MEASURED_AT}"
    return None


def _groups(settings: LlamaSettings) -> dict[int, set[tuple[int, ...]]]:
    """At each boundary, the groups of sizes whose passes gave the same logits."""
    groups: dict[int, set[tuple[int, ...]]] = {}
    n_ctx = _BOUNDARIES[-1] + 256
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_model.random(Path(folder) / "sizes.gguf", "Q8_0", n_layers=1, n_heads=2)
        with _context(path, settings, n_ctx) as context:
            n_cached = 0
            for boundary in _BOUNDARIES:
                start = boundary - _N_COMPARED // 2
                _read(context, n_cached, start)
                n_cached = start
                alike: dict[bytes, list[int]] = {}
                for size in _SIZES:
                    alike.setdefault(_digest(context, start, size), []).append(size)
                groups[boundary] = {tuple(sizes) for sizes in alike.values()}
    return groups


def _digest(context: LlamaContext, start: int, size: int) -> bytes:
    """The logits of the compared tokens, in passes over `size` tokens, which are removed again."""
    rows = b""
    for begin in range(0, _N_COMPARED, size):
        rows += _rows(context, start + begin, size, keeps=True)
    context.remove(ALL_SEQUENCES, start)
    return rows[: _N_COMPARED * tiny_model.N_VOCAB * np.dtype(np.float32).itemsize]


def _rows(context: LlamaContext, start: int, n: int, keeps: bool = False) -> bytes:
    rows = context.decode(committed_tokens(_tokens(start, n), start, 1, n_outputs=n)).tobytes()
    if not keeps:
        context.remove(ALL_SEQUENCES, start)
    return rows


def _read(context: LlamaContext, begin: int, end: int) -> None:
    for start in range(begin, end, context.config.n_batch):
        n = min(context.config.n_batch, end - start)
        context.decode(committed_tokens(_tokens(start, n), start, 1, n_outputs=0))


def _tokens(start: int, n: int) -> list[int]:
    return [(7 * i + 3) % tiny_model.N_VOCAB for i in range(start, start + n)]


@contextmanager
def _context(path: Path, settings: LlamaSettings, n_ctx: int) -> Iterator[LlamaContext]:
    config = ContextConfig(n_ctx, n_seq_max=1, n_batch=256, n_outputs=_SIZES[-1], settings=settings)
    with LlamaModel(path, settings) as model, LlamaContext(model, config) as context:
        yield context
