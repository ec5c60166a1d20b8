"""Which of llama.cpp's kernels are faster on this CPU, measured in a fraction of a second on one layer of a model.

Flash attention goes over the KV cache once for every token of a small pass, while plain attention multiplies whole
matrices, so that all nodes of a tree share the reading. Which is faster depends on the CPU, the shape of the heads and
the length of the text. What is compared is a prompt of PROMPT tokens and an answer of ANSWER tokens after it, one half
of them written one by one and the other half in small trees.

Large passes may be faster with weights as they are in the file than with re-ordered weights. Both are timed on a layer
of the type that most of a model's weights have. On CPUs and for types for which llama.cpp has no tiled kernels there is
nothing to try: re-ordered weights win at every size.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

from specrun import clock
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import LlamaError
from specrun.llama import LlamaModel, tiled_kernels
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts.relied_on import REORDERED, why_not
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import LlamaSettings
from specrun.loading import trial
from specrun.speculation.planning.pass_sizes import tokens_of

PROMPT, ANSWER = 500, 256  # tokens of the prompt that is read and of the answer that is written; chosen by hand
CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
WITH_FLASH = LlamaSettings(type_k="f16", type_v="f16", flash_attn="on")
WITHOUT_FLASH = LlamaSettings(type_k="f16", type_v="f16", flash_attn="off")
_TREES = (1, 4)  # tokens of the timed passes
_PROMPT_PASS = 512  # tokens of a pass over the prompt
_ATTENTION_ROUNDS = 7
_NARROW = 256  # width of a layer whose matrices are not what is timed; a multiple of every quantization's block

SIZES = (8, 12, 16, 24, 32, 48, 64)  # tokens of passes in both orders; tiled kernels begin at 8
_ORDER_ROUNDS = 5
_WIDTH, _FEED_FORWARD = 2048, 5632  # of the layer, about those of a model of a billion parameters
_NEVER = SIZES[-1] + 1  # the smallest size where no size is faster, in what is kept


@dataclass(frozen=True)
class Heads:
    """The attention of a layer. size: numbers of a head of K and V."""

    n_heads: int
    n_kv_heads: int
    size: int

    @classmethod
    def of(cls, file: GgufFile) -> Heads | None:
        """The heads of a model's first layer; None if it has no matrices of their own for Q and K."""
        rows = {tensor.name: tensor.shape[-1] for tensor in file.tensors if tensor.name.startswith("blk.0.attn_")}
        q, k = rows.get("blk.0.attn_q.weight"), rows.get("blk.0.attn_k.weight")
        if not q or not k or not file.n_heads or q % file.n_heads or k % (q // file.n_heads):
            return None
        size = q // file.n_heads
        return cls(file.n_heads, k // size, size)


def is_faster_without_flash(file: GgufFile, threads: int | None) -> bool:
    """Whether this CPU is clearly faster without flash attention, by an earlier trial or one made now.

    The trial takes a fraction of a second. False for models with another kind of attention, for which no trial is made.
    threads: of a pass; None for the default.
    """
    heads = Heads.of(file)
    if heads is None:
        return False
    subject = {"heads": asdict(heads), "threads": threads}
    return bool(trial.once("attention", subject, lambda: attention_ms(heads, threads), prefers_without))


def attention_ms(heads: Heads, threads: int | None) -> dict[str, float]:
    """Milliseconds that one layer's attention takes of a prompt and an answer, `with` flash attention and `without`.

    Raises LlamaError if llama.cpp cannot run a model with such heads.
    """
    config = ContextConfig(CONTEXTS[-1] + max(_TREES), n_seq_max=1, n_batch=_PROMPT_PASS, n_outputs=max(_TREES))
    kinds = {"with": WITH_FLASH, "without": WITHOUT_FLASH}
    ways = {name: LlamaSettings(threads=threads).over(kind) for name, kind in kinds.items()}
    with _opened(heads, (_NARROW, _NARROW), "F16", config, ways) as contexts:
        near = _prompt_and_passes(contexts, 0, CONTEXTS[0])
        far = _prompt_and_passes(contexts, CONTEXTS[0], CONTEXTS[1])
    total = {}
    for name in ways:
        (_, few), (prompt, many) = near[name], far[name]
        answer = ANSWER * statistics.mean((few[n] + many[n]) / 2 / tokens_of(n) for n in _TREES)
        total[name] = PROMPT * prompt / (CONTEXTS[1] - CONTEXTS[0]) + answer
    return total


def prefers_without(ms: Mapping[str, float]) -> bool:
    """Whether a trial's milliseconds are clearly fewer without flash attention. ms: as `attention_ms` returns them."""
    return trial.is_faster(ms["without"], ms["with"], trial.CLEARLY_AT_ONCE)


def _prompt_and_passes(
    contexts: Mapping[str, LlamaContext], start: int, end: int
) -> dict[str, tuple[float, dict[int, float]]]:
    """Read a prompt up to `end` where `start` tokens lie already, and run passes of each size after it, in turn.

    Returns the milliseconds of the prompt, and of passes by size.
    """
    prompt_ms = {}
    for name, context in contexts.items():
        started = clock.now()
        for first in range(start, end, _PROMPT_PASS):
            context.decode(committed_tokens([1] * min(_PROMPT_PASS, end - first), first, 1, n_outputs=0))
        prompt_ms[name] = (clock.now() - started) * 1e3
    by_size = _medians(contexts, _TREES, _ATTENTION_ROUNDS, end, outputs=True)
    return {name: (prompt_ms[name], by_size[name]) for name in contexts}


def file_order_from(file: GgufFile, threads: int | None) -> int | None:
    """Tokens of the smallest passes that are clearly faster with weights as they are in the file, as all larger ones
    are; None if there are none. By an earlier trial, or one made now, which takes a second.

    threads: of a pass; None for the default.
    """
    kind = next(iter(file.types))  # the type with the most bytes
    if not tiled_kernels.compute([kind]) or tiled_kernels.in_use() == "never" or why_not(REORDERED):
        return None
    subject = {"type": kind, "threads": threads}
    least = trial.once("orders", subject, lambda: orders_ms(kind, threads), smallest)
    return None if least is None or least >= _NEVER else least


def orders_ms(kind: str, threads: int | None) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by size, over weights `reordered` and as they are in the `file`.

    kind: their type, by ggml's name. Raises LlamaError if this llama.cpp cannot compute with both.
    """
    config = ContextConfig(SIZES[-1], n_seq_max=1, n_batch=SIZES[-1], n_outputs=1)
    ways = {
        name: LlamaSettings(threads=threads, repack=True, file_order_from=least)
        for name, least in {"reordered": _NEVER, "file": 1}.items()
    }
    with _opened(Heads(16, 4, 128), (_WIDTH, _FEED_FORWARD), kind, config, ways) as contexts:
        if not all(context.model.orders and context.model.orders.places for context in contexts.values()):
            raise LlamaError(f"llama.cpp does not re-order weights of the type {kind} on this CPU")
        return _medians(contexts, SIZES, _ORDER_ROUNDS, start=0, outputs=False)


def smallest(ms: Mapping[str, Mapping[int, float]]) -> int:
    """The smallest size from which on passes are clearly faster with weights as they are in the file; more than the
    largest of SIZES if there is none. ms: as `orders_ms` returns them.
    """

    def wins(n: int) -> bool:
        return trial.is_faster(ms["file"][n], ms["reordered"][n], trial.CLEARLY_AT_ONCE)

    return min(itertools.takewhile(wins, reversed(SIZES)), default=_NEVER)


@contextmanager
def _opened(
    heads: Heads, widths: tuple[int, int], kind: str, config: ContextConfig, ways: Mapping[str, LlamaSettings]
) -> Iterator[dict[str, LlamaContext]]:
    """A context on one layer with hardly any vocabulary, for each of several settings, by name.

    widths: of the layer, and of its feed-forward part. kind: the type of its matrices, by ggml's name. config: of each
    context, apart from its settings. Raises LlamaError if llama.cpp cannot run the layer.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_dense(Path(folder) / "layer.gguf", astuple(heads), *widths, 32, 1, ["F16", kind])
        contexts = {}
        for name, settings in ways.items():
            model = stack.enter_context(LlamaModel(path, settings))
            contexts[name] = stack.enter_context(LlamaContext(model, replace(config, settings=settings)))
        yield contexts


def _medians(
    contexts: Mapping[str, LlamaContext], sizes: Sequence[int], n_rounds: int, start: int, outputs: bool
) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by name and size. All take turns in each round, because the machine's speed changes.

    start: cached tokens before a pass. outputs: whether the logits of all its tokens are computed.
    """
    taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in sizes for name in contexts}
    for _ in range(n_rounds):
        for (name, n), ms in taken.items():
            batch = committed_tokens([1] * n, start, 1, n_outputs=n if outputs else 0)
            started = clock.now()
            contexts[name].decode(batch)
            ms.append((clock.now() - started) * 1e3)
            contexts[name].remove(ALL_SEQUENCES, start)
    return {name: {n: statistics.median(taken[name, n]) for n in sizes} for name in contexts}
