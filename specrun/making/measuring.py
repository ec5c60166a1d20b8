"""Measures how well a draft predicts a target, and how long the passes of both take.

The target writes texts, and its probabilities at every position are kept. Each draft then reads the same texts, one
pass per text (teacher forcing), and its probabilities are compared with the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.decoding import calibration_texts as texts
from specrun.errors import ModelFileError, PairError
from specrun.llama import TargetContext
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters import sequoia
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostModel, CostTable
from specrun.speculation.tree import TokenTree, TreeShape
from specrun.tuning.pass_timer import TargetTimer, rounds

TEMPERATURE = 0.8  # the default of `specrun generate`
_TOKENS, _MIN_TOKENS = 64, 8  # that the target writes after each prompt
_KEPT = 256  # likeliest tokens kept per position; ignoring the others makes the overlap slightly too low
_WRITING_SECONDS, _TIMING_SECONDS = 60.0, 5.0  # limits of the whole writing, and of the timing of a model
_SIZES, _DRAFT_SIZES = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16)  # tokens of the timed passes of target and draft
_ROUNDS = 50  # most rounds in which every timed pass runs
_DEPTH = 16  # levels of the deepest tree that is considered
_RANKS = 16  # most candidates of a node whose chances are counted
_CTX = 64  # tokens in the KV cache while passes are timed


@dataclass(frozen=True)
class Passage:
    """A text that the target wrote."""

    n_vocab: int  # of the target
    prompt: list[int]  # token ids
    written: list[int]  # token ids after the prompt, n of them
    tokens: NDArray[np.int64]  # [n, k], the target's k likeliest tokens at each position of `written`, the best first
    probabilities: NDArray[np.float64]  # [n, k], the target's probabilities of `tokens` at TEMPERATURE


@dataclass(frozen=True)
class Reference:
    """What drafts are compared with."""

    target: Path
    passages: list[Passage]
    plain_ms: float  # milliseconds of a target pass over one token, with no draft in memory
    place: tuple[int, int]  # where the weights were meanwhile, as `_place` says it


@dataclass(frozen=True)
class Quality:
    """How good a draft is for a target."""

    agreement: float  # share of positions where draft and target have the same likeliest token
    overlap: float  # sum over tokens of the smaller of both probabilities at TEMPERATURE, averaged over positions
    ms: float  # of a draft pass over one token
    cost: float  # the same as a share of a target pass over one token, both models being in memory
    tree: TreeShape  # that is expected to be the fastest
    tokens_per_pass: float  # that it is expected to commit
    speedup: float  # of this tree over plain decoding, estimated without specrun's own overhead

    def as_json(self) -> dict[str, Any]:
        names = ("agreement", "overlap", "ms", "cost", "tokens_per_pass")
        values: dict[str, Any] = {name: round(getattr(self, name), 4) for name in names}
        size = {"nodes": self.tree.n_nodes, "depth": self.tree.depth}
        return values | size | {"expected_speedup": round(self.speedup, 3)}


def read_target(path: Path, run: Run) -> Reference:
    """Load the target, time its passes and let it write texts. Raises PairError for a recurrent model."""
    run.show("loading the target")
    with _loaded(path) as model:
        for notice in model.notices:
            run.note(notice)
        if model.llama_model.is_recurrent:
            what = f"{path.name} has recurrent layers, and no draft can be made of it here"
            raise PairError(f"{what}; a smaller model of its family drafts for it (--draft)")
        prompts = _prompts(model)
        plain_ms = _costs(model.engine.target, prompts[0], (1,), run).ms(1, _CTX)
        count = max(_MIN_TOKENS, min(_TOKENS, int(1e3 * _WRITING_SECONDS / plain_ms / len(prompts))))
        passages = [
            _written(model, prompt, count, run, f"text {i} of {len(prompts)} by the target")
            for i, prompt in enumerate(prompts, 1)
        ]
        return Reference(path, passages, plain_ms, _place(model))


def measure(path: Path, reference: Reference, run: Run) -> Quality:
    """Load a draft with the target, as for generation, and compare the two. Raises PairError if it cannot draft."""
    run.show("loading")
    with _loaded(reference.target, path) as model:
        if model.engine.draft is None:
            raise PairError(f"{path.name} cannot draft")
        draft = TargetContext(model.engine.draft.context)  # reads a whole text in one pass
        ranks, shared = [], []  # for each passage int[n] and float64[n]
        for passage in reference.passages:
            run.show("comparing")
            rows = _read(draft, passage)
            ranks.append((rows > np.take_along_axis(rows, passage.tokens[:, :1], axis=1)).sum(axis=1))
            probabilities = np.take_along_axis(_softmax(rows), passage.tokens, axis=1)
            shared.append(np.minimum(probabilities, passage.probabilities).sum(axis=1))
        if not all(np.isfinite(sums).all() for sums in shared):
            raise ModelFileError(f"{path.name} computes logits that are not numbers")
        text = reference.passages[0].prompt
        target_costs = _costs(model.engine.target, text, _SIZES, run)
        draft_costs = _costs(draft, text, _DRAFT_SIZES, run)
        # Where the draft leaves the target less memory, plain decoding is faster without it.
        is_as_alone = _place(model) == reference.place
    ms_beside, ms = target_costs.ms(1, _CTX), draft_costs.ms(1, _CTX)
    plain_ms = ms_beside if is_as_alone else reference.plain_ms
    counts = np.bincount(np.concatenate(ranks), minlength=_RANKS)
    acceptance = (counts[:_RANKS] / counts.sum()).tolist()
    tree, speedup = best_tree(acceptance, CostModel(target_costs, draft_costs), plain_ms)
    overlap = float(np.concatenate(shared).mean())
    return Quality(acceptance[0], overlap, ms, ms / ms_beside, tree, tree.expected(acceptance), speedup)


def best_tree(acceptance: Sequence[float], costs: CostModel, plain_ms: float) -> tuple[TreeShape, float]:
    """The shape of the fastest tree among those whose passes were timed, and its speedup over plain decoding.

    acceptance: for each k, the chance that the draft's k-th candidate is accepted.
    costs: times of both models' passes, with both in memory.
    plain_ms: milliseconds of a pass of plain decoding, for which the target has the draft's memory too.
    """
    target = costs.target
    shapes = [TreeShape.chain(n - 1) for n in target.sizes[1:] if n - 1 <= _DEPTH]
    shapes += [sequoia.best_shape(acceptance, n, depth) for n in target.sizes[1:] for depth in range(1, _DEPTH + 1)]
    speedups = {
        shape: shape.expected(acceptance) * plain_ms / sequoia.pass_ms(shape, costs, _CTX)
        for shape in shapes
        if shape.n_nodes > 1
    }
    return max(speedups.items(), key=lambda item: item[1])


def _loaded(target: Path, draft: Path | None = None) -> Model:
    plan = CHAIN.plan(depth=_TOKENS - 1)
    return Model(RunOptions(target, draft, (plan if draft else OFF.plan(),), largest=plan))


def _prompts(model: Model) -> list[list[int]]:
    """Token ids of the calibration prompts, cut off so that the written text fits into the context."""
    size = model.engine.ctx_size
    if size <= _TOKENS:
        raise ModelFileError(f"{model.llama_model.name} has a context of {size} tokens, too few to measure")
    return [model.prompt_tokens(text.prompt)[: size - _TOKENS] for text in texts.shipped("calibrate")]


def _place(model: Model) -> tuple[int, int]:
    """Where the target's weights are: the number of layers in VRAM, and the bytes that every pass reads from disk."""
    n_gpu_layers = model.placement.n_gpu_layers if model.placement else 0
    return n_gpu_layers, model.residency.streamed_bytes


def _costs(context: TargetContext, text: Sequence[int], sizes: Sequence[int], run: Run) -> CostTable:
    """The times of a model's passes over these numbers of tokens, after the beginning of a text."""
    run.show("timing")
    timings = rounds(TargetTimer(context, text), _CTX, sizes, _ROUNDS, run.stage(_TIMING_SECONDS))
    return CostTable(timings.pass_times())


def _written(model: Model, prompt: list[int], count: int, run: Run, label: str) -> Passage:
    """Let the target write at most `count` tokens after a prompt, fewer if it ends its text."""
    target = model.engine.target
    sampler = Sampler(SamplingParameters(temperature=TEMPERATURE), target.n_vocab)
    target.set_prompt(prompt)
    written: list[int] = []
    tokens, probabilities = [], []
    while len(written) < count and not (written and model.llama_model.is_end_of_generation(written[-1])):
        run.show(label)
        root = TokenTree.root_only(target.tokens[-1])
        logits = target.score(root)[0]
        distribution = _softmax(logits[None])[0]
        kept = np.argsort(-distribution, kind="stable")[:_KEPT]
        tokens.append(kept)
        probabilities.append(distribution[kept])
        written.append(sampler.sample(logits, len(target.tokens), []))
        target.commit(root, [0], written[-1])
    return Passage(target.n_vocab, prompt, written, np.stack(tokens), np.stack(probabilities))


def _read(draft: TargetContext, passage: Passage) -> NDArray[np.float32]:
    """The draft's logits where the target wrote: float32[n, n_vocab of the target]. It reads unknown tokens as 0."""
    text = [token if token < draft.n_vocab else 0 for token in [*passage.prompt, *passage.written[:-1]]]
    start = len(passage.prompt)
    draft.set_prompt(text[:start])
    rows = draft.score(TokenTree.chain(text[start - 1 :])).copy()
    draft.drop_tree()
    n_missing = max(passage.n_vocab - rows.shape[1], 0)
    return np.pad(rows[:, : passage.n_vocab], ((0, 0), (0, n_missing)), constant_values=-np.inf)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities at TEMPERATURE of logits float32[n, n_vocab]; returns float64 of the same shape."""
    scaled = logits.astype(np.float64) / TEMPERATURE
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
