"""The settings of a target that nobody has tuned: llama.cpp's own, unless others keep the text bit-exact at no cost.

Two of them are measured, in a second at most on one layer, once for a type of weights on a machine: large passes may be
faster with weights as they are in the file than with re-ordered weights, and passes over 8 tokens and some more faster
without llama.cpp's tiled kernels. Where it has none for a CPU or a type there is nothing to try: re-ordered weights win
at every size.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from specrun import clock, kept_facts
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.hardware.fit import room_for_weights
from specrun.hardware.machine import surroundings
from specrun.hardware.placement import Placement
from specrun.llama import LlamaModel, devices, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts.relied_on import EXACT_TYPES, REORDERED, TILED_FROM, why_not
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import LlamaSettings
from specrun.loading.placing import LoadPlan, plan_load
from specrun.loading.trial import CLEARLY_AT_ONCE, is_faster

# Weight types whose CPU kernels give a token the same bits in passes of every size, as long as they are not re-ordered
# (docs/exactness.md).
_EXACT_TYPES = {"F32", "Q8_0"}
# Flash attention goes over the cache once for each token of a small pass. On a CPU that costs more than plain attention
# saves for heads of few numbers (docs/benchmarks/types.md#attention), unless many texts share a context: 16 texts of 60
# to 600 tokens took 185 s without, 127 s with it (docs/benchmarks/batch.md).
NARROW, _MOST_WITHOUT_FLASH = 32, 4  # numbers of a head, texts
_WITHOUT_FLASH = LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of passes in both orders; tiled kernels begin at 8
TILED_SIZES = (8, 10, 12, 14, 16)  # of passes with and without tiled kernels, which take as long for 8 as for 16
_WORTH_TILED = 100_000_000  # bytes of weights from which that is tried: smaller models gain less than it takes
_ROUNDS = 5
_HEADS, _WIDTH, _FEED_FORWARD = (16, 4, 128), 2048, 5632  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


def keeps_bits(target: GgufFile) -> bool:
    """Whether the CPU's kernels for a model's weights give a token the same bits in passes of every size."""
    return _has_exact_types(target) and why_not(EXACT_TYPES) is None


def lost_bits(target: GgufFile) -> str | None:
    """A line for the user if it is only because of this build of llama.cpp that bits are not kept; else None."""
    why = why_not(EXACT_TYPES) if _has_exact_types(target) else None
    return EXACT_TYPES.notice(why) if why else None


def _has_exact_types(file: GgufFile) -> bool:
    return set(file.types) <= _EXACT_TYPES


def with_defaults(plan: LoadPlan) -> LoadPlan:
    """The plan, with llama.cpp's own settings where they do not lose bit-exactness.

    V is cached in f16, as K is: llama.cpp then reads a prompt several times as fast after a long context. Weights in
    RAM are re-ordered for this CPU, which makes passes over a few tokens faster, and flash attention is off for narrow
    heads. Where RAM has room for the weights twice, large passes take them as they are in the file if a trial was
    faster so. Streamed weights, and those of which a GPU holds some, stay as they are in the file.

    Where RAM has room for them, two kinds of weights are read into memory and not mapped: the experts of a mixture, so
    that the system does not drop pages of experts that were not chosen for a while, and weights that large passes copy
    to a GPU, which takes about half as long from the memory that llama.cpp then gives them.

    With `--exact`, tiled kernels compute all passes over streamed weights that have them: one kernel for all sizes
    needs no padding, and reading hides what it takes longer for a few tokens.
    """
    options, file, placement = plan.options, plan.here.target, plan.placement
    decided, keeps = options.settings, keeps_bits(file)
    if keeps and not file.n_experts and not plan.here.gpus:
        return plan
    on_cpu = not placement.n_gpu_layers
    in_memory = LlamaSettings(load_mode="none" if _reads(placement) else None)
    if keeps:
        defaults = LlamaSettings()
    elif options.exact:
        is_streamed = placement.regime == "streamed" and on_cpu and not decided.repack
        one_kernel = is_streamed and tiled_kernels.compute(file.types) and tiled_kernels.is_open()
        defaults = LlamaSettings(tiled="always" if one_kernel else None)
    else:
        repack = True if placement.can_repack else None
        defaults = LlamaSettings(type_v=None if decided.type_k else "f16", repack=repack)
        faster = attention_of(file, decided, options.parallel)
        if on_cpu and placement.regime == "in RAM" and faster.flash_attn:
            without = plan_load(replace(options, settings=decided.over(faster)), plan.here)
            # Its buffers are larger.
            if (without.placement.regime, without.placement.can_repack) == ("in RAM", placement.can_repack):
                plan, defaults = without, faster.over(defaults)
        # Weights that are not re-ordered, or whose file is not mapped, lie in memory once. The experts of a mixture get
        # fewer tokens than a pass has, so nothing was tried for them.
        is_mapped = decided.load_mode in (None, "auto", "mmap")
        lies_twice = repack and decided.repack is not False and is_mapped and not file.n_experts
        if lies_twice and _has_room(placement, 2):
            defaults = replace(defaults, file_order_from=file_order_from(file, decided.threads))
        if placement.regime != "in VRAM" and not decided.over(defaults).repack:
            defaults = replace(defaults, tiled_from=tiled_from(file, decided.threads_batch or decided.threads))
    return replace(plan, options=replace(plan.options, settings=decided.over(defaults).over(in_memory)))


def mapped_if_short(plan: LoadPlan, decided: LlamaSettings) -> LoadPlan:
    """The plan, with weights mapped that its profile would have read into memory, if they do not fit there now.

    decided: what the user decided of the target's settings.
    """
    options = plan.options
    if plan.placement.regime != "streamed" or decided.load_mode or options.settings.load_mode != "none":
        return plan
    return replace(plan, options=replace(options, settings=replace(options.settings, load_mode="auto")))


def of_draft(draft: GgufFile, decided: LlamaSettings) -> LlamaSettings:
    """The settings of a draft model: the CPU computes it with re-ordered weights, as nobody needs a draft's bits.

    Weights of the types that are exact stay as they are in the file, because they gain nothing by it, and so do all
    where this llama.cpp cannot compute with others.
    """
    gains = not decided.gpu_layers and not _has_exact_types(draft) and not why_not(REORDERED)
    return decided.over(LlamaSettings(repack=True)) if gains else decided


def _reads(placement: Placement) -> bool:
    """Whether weights in RAM are read into memory, where they have room, and not mapped.

    They need room once: the page cache, which holds the file besides while it is read, gives that up.
    """
    is_copied = placement.regime == "partly in VRAM" and any(gpu.pins for gpu in placement.request.gpus)
    gains = is_copied or bool(placement.ram.parts.get("experts"))
    return gains and placement.regime != "streamed" and _has_room(placement, 1)


def _has_room(placement: Placement, times: int) -> bool:
    """Whether RAM can hold its weights so many times: twice in memory and in the page cache as they are in the file."""
    parts = placement.ram.parts
    return times * (parts.get("target", 0) + parts.get("experts", 0)) <= room_for_weights(placement)


def attention_of(file: GgufFile, decided: LlamaSettings, n_texts: int) -> LlamaSettings:
    """Settings that turn flash attention off where that is faster on a CPU and the user left it open.

    n_texts: that may share the context. Without flash attention each token pays for the cells of all of them.
    """
    is_open = decided.flash_attn is None and decided.type_k is None and decided.type_v is None
    is_narrow = file.heads is not None and file.heads[-1] <= NARROW
    return _WITHOUT_FLASH if is_open and is_narrow and n_texts <= _MOST_WITHOUT_FLASH else LlamaSettings()


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the type with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never" or why_not(REORDERED):
        return None
    least = _tried("orders", kind, threads, lambda: smallest(orders_ms(kind, threads)))
    return least if least and least < _NEVER else None


def _tried(fact: str, kind: str, threads: int | None, trial: Callable[[], int]) -> int | None:
    """What an earlier trial found for weights of this type on this machine, or what it finds now; None if it cannot be
    made. The text may depend on it, so another trial must not change it.
    """
    of = {**surroundings(devices.this_machine()), "type": kind, "threads": threads}
    try:
        return kept_facts.once(fact, of, trial, int)
    except (LlamaError, OSError):  # llama.cpp cannot be measured so, or memory or the disk is full
        return None


def orders_ms(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, over weights `reordered` and as they are in the `file`.

    kind: their type, by ggml's name. Raises LlamaError if this llama.cpp cannot compute with both.
    """
    from_size = {"reordered": _NEVER, "file": 1}
    ways = {way: LlamaSettings(threads, repack=True, file_order_from=n) for way, n in from_size.items()}
    return _layer_ms(kind, SIZES, ways)


def tiled_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that tiled kernels should compute, where smaller ones are clearly faster without;
    None where llama.cpp's own choice is as good. By an earlier trial, or one made now, which takes half a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the type with the most bytes
    is_open = tiled_kernels.compute([kind]) and tiled_kernels.in_use() == "auto"
    if not is_open or file.n_bytes < _WORTH_TILED or why_not(TILED_FROM):
        return None
    least = _tried("tiles", kind, threads, lambda: tiled_least(tiled_ms(kind, threads)))
    return least if least and least > TILED_SIZES[0] else None


def tiled_ms(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, `tiled` and with llama.cpp's `other` kernels.

    kind: the type of the weights, by ggml's name. Raises LlamaError if this llama.cpp cannot be measured so.
    """
    usual = LlamaSettings(threads)
    return _layer_ms(kind, TILED_SIZES, {"tiled": usual, "other": replace(usual, tiled_from=TILED_SIZES[-1] + 1)})


def tiled_least(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size above those at which tiled kernels clearly lose. ms: as `tiled_ms` returns them."""

    def loses(n: int) -> bool:
        return is_faster(ms["other"][n], ms["tiled"][n], CLEARLY_AT_ONCE)

    return max(itertools.takewhile(loses, TILED_SIZES), default=TILED_SIZES[0] - 1) + 1


def _layer_ms(kind: str, sizes: Sequence[int], ways: Mapping[str, LlamaSettings]) -> dict[str, dict[int, float]]:
    """Milliseconds of passes over one layer by size, with each of these settings. All take turns in each round, because
    the machine's speed changes.
    """
    taken: dict[tuple[str, int], list[float]] = {(way, n): [] for n in sizes for way in ways}
    contexts: dict[str, LlamaContext] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_dense(Path(folder) / "layer.gguf", _HEADS, _WIDTH, _FEED_FORWARD, 32, 1, ["F16", kind])
        for way, settings in ways.items():
            model = stack.enter_context(LlamaModel(path, settings))
            if model.why_usual:
                raise LlamaError(model.why_usual[0])
            if model.orders and not model.orders.places:
                raise LlamaError(f"llama.cpp does not re-order weights of the type {kind} on this CPU")
            config = ContextConfig(sizes[-1], n_seq_max=1, n_batch=sizes[-1], n_outputs=1, settings=settings)
            contexts[way] = stack.enter_context(LlamaContext(model, config))
        for _ in range(_ROUNDS):
            for (way, n), ms in taken.items():
                batch = committed_tokens([1] * n, 0, 1, n_outputs=0)
                started = clock.now()
                contexts[way].decode(batch)
                ms.append((clock.now() - started) * 1e3)
                contexts[way].remove(ALL_SEQUENCES, 0)
    return {way: {n: statistics.median(taken[way, n]) for n in sizes} for way in ways}


def smallest(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size from which on passes are clearly faster with weights as they are in the file; more than the
    largest of SIZES if there is none. ms: as `orders_ms` returns them.
    """

    def wins(n: int) -> bool:
        return is_faster(ms["file"][n], ms["reordered"][n], CLEARLY_AT_ONCE)

    return min(itertools.takewhile(wins, reversed(SIZES)), default=_NEVER)
