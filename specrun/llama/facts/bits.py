"""Facts about passes: where tokens lie, which weights they are computed with, which sizes give the same logits."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from specrun.catalog.layer_states import n_bytes, weight_pages
from specrun.errors import CrashError, LlamaError
from specrun.hardware.cpu import read_flags
from specrun.hardware.fit import FEWEST_SLOTS, plan_residency
from specrun.hardware.memory import Pressure
from specrun.llama import tiled_kernels
from specrun.llama.batch import committed_tokens, joined
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext, Logits
from specrun.llama.facts import tiny_model
from specrun.llama.slot_cells import CellLedger, n_sequences
from specrun.llama.streaming import self_check
from specrun.llama.streaming.address_space import PAGE, CannotStreamError
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings
from specrun.processes import child_process

# Numbers of cells that a text's next tokens cross. llama.cpp reads K and V in blocks of 256 cells and takes kernels for
# long contexts from 512 on; classes of sizes are measured at 768 (`invariance`), and used at all.
_BOUNDARIES = (256, 512, 768, 1280, 1536, 2304)
_MEASURED_AT = 768
_SIZES = (1, 2, 3, 8, 32, 64)  # tokens of a pass
_N_COMPARED = 8  # tokens, the first tokens of larger passes
_LEAST = 8  # tokens from which passes take weights as they are in the file
_LEAVES = (2, 2, 1)  # of the slots of texts at random
_PASSES = 40
_LONGEST = 40  # tokens of a text, from which on its slot is emptied
_EXACT = LlamaSettings(type_k="f16", type_v="bf16", flash_attn="on")
# For CMake: re-ordered weights are computed without AMX.
WITHOUT_AMX = ("-DCMAKE_C_FLAGS=-mno-amx-int8", "-DCMAKE_CXX_FLAGS=-mno-amx-int8")


def check_layers_in_turn(settings: LlamaSettings) -> str | None:
    """Stream the layers of a tiny model, and compare the logits with those of llama.cpp's own mapping.

    Each model that is streamed is checked again (`streaming.self_check`).
    """
    config = ContextConfig(256, n_seq_max=1, n_batch=8, n_outputs=1, settings=replace(settings, threads=1))
    with tiny_model.loaded(n_layers=FEWEST_SLOTS + 2) as model:
        pages = weight_pages(model.file, PAGE)
        room = n_bytes(pages.others) + FEWEST_SLOTS * max(pages.layer_bytes)
        plan = plan_residency(pages.layer_bytes, n_bytes(pages.others), room)
        assert plan, "the room is that of the slots"
        try:
            with (
                StreamedWeights(pages, plan, Pressure(0, lambda: 0)) as weights,
                LlamaContext(model, config, weights) as context,
            ):
                return self_check.computed_otherwise(context, weights)
        except CannotStreamError as reason:
            return str(reason)


def check_reordered(_settings: LlamaSettings) -> str | None:
    """Let a process of its own make a pass over re-ordered weights, where the processor has AMX.

    There llama.cpp re-orders weights for kernels that set up the processor's tiles first. GCC up to 11.4, 12.3 and 13.2
    leaves out what these kernels write into memory for that (https://gcc.gnu.org/PR114098), so that the first pass ends
    the process, whatever the model is (llama.cpp's issue 20824). Other programs on the same build end there, too.
    """
    if "amx_int8" not in read_flags():
        return None
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    try:
        child_process.answer(__name__, {}, "a pass over re-ordered weights", lambda: None, debug)
    except CrashError:
        return "llama.cpp's kernels for AMX end the process, as compilers before GCC 12.4, 13.3 and 14 make them"
    return None


def serve(request: str) -> None:
    """In the child of `check_reordered`: make the pass."""

    def run(_given: dict[str, Any]) -> dict[str, Any]:
        config = _config(256, LlamaSettings(threads=1, repack=True))
        with tiny_model.loaded(config.settings, "Q4_K") as model, LlamaContext(model, config) as context:
            _decoded(context, 0, 4, 1)
        return {}

    child_process.reply(request, run, failures=Exception)  # a full disk is no fault of the kernels


def check_orders(settings: LlamaSettings) -> str | None:
    """Compare passes that switch between both orders of weights with passes over weights that lie in one order."""
    kinds = {
        "file": replace(settings, repack=False),
        "reordered": replace(settings, repack=True),
        "both": replace(settings, repack=True, file_order_from=_LEAST),
    }
    found: dict[str, list[bytes]] = {name: [] for name in kinds}
    for name, chosen in kinds.items():
        config = _config(256, replace(chosen, threads=1))
        with tiny_model.loaded(config.settings, "Q4_K") as model, LlamaContext(model, config) as context:
            if name == "both" and model.why_usual:
                return model.why_usual[0]
            for n in (4, 16, 4):
                found[name].append(_decoded(context, 0, n, n).tobytes())
                context.remove(ALL_SEQUENCES, 0)
    if found["both"] != [found["reordered"][0], found["file"][1], found["reordered"][2]]:
        return "this llama.cpp gave other logits when weights were taken from the file"
    return None


def check_tiled_from(settings: LlamaSettings) -> str | None:
    """Compare a pass that tiled kernels leave out with smaller passes, which they never compute.

    Raises LlamaError where they compute all passes or none in this process, so that nothing is learned.
    """
    if not tiled_kernels.has_processor():
        return None
    if (settings.tiled or tiled_kernels.in_use()) != "auto":
        raise LlamaError("tiled kernels compute all passes or none in this process")
    chosen = replace(_EXACT, threads=1, repack=False, tiled=settings.tiled, tiled_from=4 * _LEAST)
    config = _config(256, chosen)
    with tiny_model.loaded(chosen, "Q4_K") as model, LlamaContext(model, config) as context:
        if model.why_usual:
            return model.why_usual[0]
        small = b"".join(_decoded(context, start, 4, 4).tobytes() for start in (0, 4, 8, 12))
        context.remove(ALL_SEQUENCES, 0)
        if _decoded(context, 0, 16, 16).tobytes() != small:
            return "this llama.cpp computed a pass with other kernels than it was to"
    return None


def check_exact_types(settings: LlamaSettings) -> str | None:
    """Compare passes of several sizes on both sides of each boundary, with the cache types of exact passes."""
    for boundary, groups in _groups(_EXACT.over(settings)).items():
        if len(groups) > 1:
            return f"passes of different sizes gave other logits after {boundary} tokens"
    return None


def check_boundaries(settings: LlamaSettings) -> str | None:
    """Compare which sizes have the same bits at one boundary with those at the others, with llama.cpp's cache types."""
    found = _groups(LlamaSettings(type_k="f16", type_v="f16", flash_attn="on").over(settings))
    other = [boundary for boundary in found if found[boundary] != found[_MEASURED_AT]]
    if other:
        return f"attention after {other[0]} tokens depends otherwise on the size of a pass than after {_MEASURED_AT}"
    return None


def _groups(settings: LlamaSettings) -> dict[int, set[tuple[int, ...]]]:
    """At each boundary, the groups of sizes whose passes gave the same logits."""
    groups: dict[int, set[tuple[int, ...]]] = {}
    config = _config(_BOUNDARIES[-1] + 256, settings)
    tiny = tiny_model.loaded(settings, "Q8_0", n_layers=1, n_heads=2)
    with tiny as model, LlamaContext(model, config) as context:
        n_cached = 0
        for boundary in _BOUNDARIES:
            start = boundary - _N_COMPARED // 2
            for begin in range(n_cached, start, config.n_batch):
                _decoded(context, begin, min(config.n_batch, start - begin), 0)
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
        rows += _decoded(context, start + begin, size, size)[: _N_COMPARED - begin].tobytes()
    context.remove(ALL_SEQUENCES, start)
    return rows


def _decoded(context: LlamaContext, start: int, n: int, n_outputs: int) -> Logits:
    """A pass over `n` tokens of a text from position `start` on, with logits of the last `n_outputs`."""
    tokens = [(7 * i + 3) % tiny_model.N_VOCAB for i in range(start, start + n)]
    return context.decode(committed_tokens(tokens, start, 1, n_outputs))


def _config(n_ctx: int, settings: LlamaSettings) -> ContextConfig:
    return ContextConfig(n_ctx, n_seq_max=1, n_batch=256, n_outputs=_SIZES[-1], settings=settings)


def check_cells(settings: LlamaSettings) -> str | None:
    """Whether the mirror of llama.cpp's choice of cells is right: passes over a few texts at random, of which some
    tokens are rolled back.

    What llama.cpp saves of a sequence lists its cells in their order in the cache. With weights of zeros all that
    differs between two cells is the position. So what it saves of a text in a slot must be what it saves of it alone.
    """
    settings = replace(settings, threads=1)
    config = ContextConfig(256, n_sequences(_LEAVES), 64, 1, settings, slots=_LEAVES)
    with (
        tiny_model.loaded(is_random=False) as model,
        LlamaContext(model, config) as context,
        LlamaContext(model, config) as alone,
    ):
        ledger = CellLedger(context)
        rng = np.random.default_rng(0)
        for _ in range(_PASSES):
            _random_pass(ledger, rng)
            for slot in ledger.slots:
                alone.remove(ALL_SEQUENCES, 0)
                if slot.cells:
                    alone.decode(committed_tokens([0] * len(slot.cells), 0, 1, 0, slot.first))
                    if context.sequence_state(slot.first).tobytes() != alone.sequence_state(slot.first).tobytes():
                        return "this llama.cpp puts tokens into other cells than specrun knows"
    return None


def _random_pass(ledger: CellLedger, rng: np.random.Generator) -> None:
    """A pass over some of the texts, of which each then goes on from some earlier position."""
    for slot in ledger.slots:
        if len(slot.cells) > _LONGEST:
            slot.clear()
    chosen = [slot for slot in ledger.slots if rng.random() < 0.6] or [ledger.slots[0]]
    chosen.sort(key=lambda slot: slot.last)
    shares = [(slot, int(rng.integers(1, 7))) for slot in chosen]
    batches = [committed_tokens([0] * n, len(slot.cells), slot.max_leaves, 0, slot.first) for slot, n in shares]
    batch = joined(batches)
    with ledger.writing(batch, shares):
        ledger.context.decode(batch)
    for slot, n in shares:
        slot.rollback(len(slot.cells) - int(rng.integers(n + 1)))
