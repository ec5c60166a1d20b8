"""Small models of which a chosen number of bytes stays in memory, and the rest goes through the ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import WeightPages, n_bytes, weight_pages
from specrun.hardware.fit import ResidencyPlan, plan_residency
from specrun.hardware.memory import Pressure
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.streaming import self_check
from specrun.llama.streaming.address_space import PAGE
from specrun.llama.streaming.streamed_weights import StreamedWeights
from specrun.llama_settings import LlamaSettings
from specrun.speculation.tree import TokenTree
from tests.trees import random_tree

CONFIG = ContextConfig(n_ctx=256, n_seq_max=8, n_batch=64, n_outputs=32, settings=LlamaSettings(threads=1))
CALM = Pressure(0, lambda: 0)  # memory is never short
PROMPT = [(i * 37 + 11) % 2000 for i in range(150)]  # more than two passes of 64


@dataclass(frozen=True)
class Plans:
    """The pages of a model, and the plan with so many resident layers and slots."""

    pages: WeightPages
    plan: ResidencyPlan


def planned(path: Path, n_resident: int = 0, n_slots: int = 2) -> Plans:
    """The plan for the room that `n_resident` of the model's layers need beside the slots."""
    pages = weight_pages(GgufFile.read(path), PAGE)
    layers, others = pages.layer_bytes, n_bytes(pages.others)
    plan = plan_residency(layers, others, others + (n_resident + n_slots) * max(layers), n_slots)
    assert plan
    assert len(plan.streamed) > n_slots, "everything fits"
    return Plans(pages, plan)


@contextmanager
def context(path: Path, config: ContextConfig = CONFIG) -> Iterator[LlamaContext]:
    """A context whose weights llama.cpp maps."""
    with LlamaModel(path) as model, LlamaContext(model, config) as made:
        yield made


@contextmanager
def streamed_context(
    path: Path,
    n_resident: int = 0,
    n_slots: int = 2,
    config: ContextConfig = CONFIG,
    pressure: Pressure = CALM,
) -> Iterator[LlamaContext]:
    """A context whose layers go through the ring, except for about `n_resident` ones."""
    plans = planned(path, n_resident, n_slots)
    with (
        LlamaModel(path) as model,
        StreamedWeights(plans.pages, plans.plan, pressure) as weights,
        LlamaContext(model, config, weights) as made,
    ):
        self_check.stream(made, weights)
        yield made


def written(context: LlamaContext) -> list[bytes]:
    """The logits of plain passes, chains and trees, with commits, a new prompt that shares a prefix, and a reset."""
    target = TargetContext(context)
    rng = np.random.default_rng(0)
    rows: list[bytes] = []

    def score(tree: TokenTree, path: Sequence[int], token: int) -> None:
        rows.append(target.score(tree).tobytes())
        target.commit(tree, list(path), token)

    target.set_prompt(PROMPT)
    for token in (5, 6):
        score(TokenTree.root_only(target.tokens[-1]), [0], token)
    score(TokenTree.chain([target.tokens[-1], 1, 2, 3]), [0, 1, 2], 9)
    for n in (5, 20):
        score(random_tree(rng, n, 2000, target.tokens[-1], 8), [0, 1], 7)
    target.set_prompt([*PROMPT[:100], 3, 4])
    score(TokenTree.root_only(target.tokens[-1]), [0], 8)
    target.reset()
    target.set_prompt(PROMPT[:10])
    score(TokenTree.root_only(target.tokens[-1]), [0], 8)
    return rows
