"""One layer of a model, on which trials compare llama.cpp's kernels in a fraction of a second."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.zero_model import write_dense
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings


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

    def write(self, path: Path, width: int, feed_forward: int, kind: str) -> Path:
        """Write a model of one layer with these heads and hardly any vocabulary.

        width, feed_forward: of the layer. kind: the type of its matrices, by ggml's name.
        """
        heads = self.n_heads, self.n_kv_heads, self.size
        return write_dense(path, heads, width, feed_forward, 32, 1, ["F16", kind])


@contextmanager
def opened(
    heads: Heads, width: int, feed_forward: int, kind: str, config: ContextConfig, ways: Mapping[str, LlamaSettings]
) -> Iterator[dict[str, LlamaContext]]:
    """A context on one layer for each of several settings, by name.

    width, feed_forward, kind: of the layer, as `Heads.write` takes them. config: of each context, apart from its
    settings. Raises LlamaError if llama.cpp cannot run the layer.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = heads.write(Path(folder) / "layer.gguf", width, feed_forward, kind)
        contexts = {}
        for name, settings in ways.items():
            model = stack.enter_context(LlamaModel(path, settings))
            contexts[name] = stack.enter_context(LlamaContext(model, replace(config, settings=settings)))
        yield contexts


def medians(
    contexts: Mapping[str, LlamaContext], sizes: Sequence[int], n_rounds: int, start: int, outputs: bool
) -> dict[str, dict[int, float]]:
    """Milliseconds of passes by name and size. All take turns in each round, because the machine's speed changes.

    start: cached tokens before a pass. outputs: whether the logits of all its tokens are computed.
    """
    taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in sizes for name in contexts}
    for _ in range(n_rounds):
        for (name, n), ms in taken.items():
            batch = committed_tokens([1] * n, start, 1, n_outputs=n if outputs else 0)
            started = time.perf_counter()
            contexts[name].decode(batch)
            ms.append((time.perf_counter() - started) * 1e3)
            contexts[name].remove(ALL_SEQUENCES, start)
    return {name: {n: statistics.median(taken[name, n]) for n in sizes} for name in contexts}
