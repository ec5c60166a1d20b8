"""What the tests of heads share: orders of heads, a head with random weights, and what the data folder has of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from scripts.make_head.export import export, whole_embedding
from scripts.make_head.making import HeadOrder
from scripts.make_head.shape import Floats, HeadShape, shape_for
from scripts.make_head.vocabulary import Vocabulary
from specrun.catalog import embedded, made
from specrun.catalog.gguf_file import GgufFile

PROMPTS = ["def read_config(path):\n", "import logging\nimport time\n", "class Matrix:\n", "x = [1, 2, 3]\n"]


def order(target: Path = embedded.TARGET, *, seconds: float = 3.0, n_vocab: int = 512) -> HeadOrder:
    """An order of a head that is made in so many seconds."""
    return HeadOrder(target, PROMPTS, seconds / 3600, n_vocab, with_shipped=False, raw=True)


def random_head(path: Path, target: Path = embedded.TARGET, n_kept: int = 512, seed: int = 0) -> Path:
    """A head with random weights that can draft `n_kept` tokens, as `export` writes it."""
    file, rng = GgufFile.read(target), np.random.default_rng(seed)
    shape = shape_for(file)
    kept = np.sort(rng.choice(shape.n_vocab, n_kept, replace=False))
    read = np.sort(rng.choice(shape.n_vocab, shape.n_vocab // 2, replace=False))
    vocabulary = Vocabulary(kept, read, shape.n_vocab)
    weights = random_weights(shape, len(read), rng)
    weights["token_embd.weight"] = whole_embedding(weights["token_embd.weight"], vocabulary, file)
    export(weights, shape, vocabulary, file, path, "at random")
    return path


def registered_head() -> Path:
    """A head of the embedded target with random weights, as the script leaves it."""
    folder = made.home(embedded.TARGET)
    folder.mkdir(parents=True)
    path = random_head(folder / "head-eagle3.gguf")
    made.register(embedded.TARGET, made.MadeDraft(path, "EAGLE-3, at random"), "head")
    return path


def files() -> list[str]:
    """The names of what the data folder has of drafts and heads."""
    return sorted(path.name for path in Path(os.environ["SPECRUN_DATA_DIR"]).glob("drafts/**/*"))


def random_weights(shape: HeadShape, n_read: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Weights by the names of the network's parameters."""
    width, attention = shape.width, shape.attention_width
    sizes = {
        "fc": (width, shape.state_width),
        "blk.0.attn_q": (attention, 2 * width),
        "blk.0.attn_k": (attention, 2 * width),
        "blk.0.attn_v": (attention, 2 * width),
        "blk.0.attn_output": (width, attention),
        "blk.0.ffn_gate": (shape.feed_forward, width),
        "blk.0.ffn_up": (shape.feed_forward, width),
        "blk.0.ffn_down": (width, shape.feed_forward),
        "token_embd": (n_read, width),
    }
    matrices = {
        f"{name}.weight": (rng.standard_normal(size) * size[1] ** -0.5).astype(np.float32)
        for name, size in sizes.items()
    }
    norms = ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
    return matrices | {f"{name}.weight": np.ones(width, np.float32) for name in norms}
