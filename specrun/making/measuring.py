"""How well a draft guesses a target, and how long the passes of both take.

The target writes texts at the usual temperature, and its probabilities at every position are kept. Every draft then
reads the same texts, in one pass each (teacher forcing).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.engine import calibration_texts as texts
from specrun.engine.model import Model
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.engine.run_options import RunOptions
from specrun.errors import ModelFileError, PairError
from specrun.llama import TargetContext
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.method import OFF
from specrun.speculation.planning.costs import CostTable
from specrun.speculation.tree import TokenTree
from specrun.tuning.pass_timer import TargetTimer, rounds

TEMPERATURE = 0.8
_TOKENS, _FEWEST_TOKENS = 64, 8  # written behind every prompt
_KEPT = 256  # the likeliest tokens of a position; the others are left out of the overlap, which is so a little too low
_WRITING_SECONDS, _TIMING_SECONDS = 60.0, 10.0
_SIZES = (1, 2, 3, 5, 9, 17)  # tokens of a target pass: a chain of 1, 2, 4, 8 or 16 and the token before it
_ROUNDS = 7
_TURNS, _FEWEST_TURNS = 200, 3
_CTX = 64


@dataclass(frozen=True)
class Passage:
    """A text that the target wrote. prompt, written: token ids. best: int64[n], its likeliest token at each position of
    `written`. tokens, probabilities: int64[n, k] and float64[n, k], its likeliest tokens there in any order, at
    TEMPERATURE. n_vocab: of the target.
    """

    n_vocab: int
    prompt: list[int]
    written: list[int]
    best: NDArray[np.int64]
    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """What drafts are compared with. costs: of the target's passes, when it was loaded alone."""

    target: Path
    passages: list[Passage]
    costs: CostTable

    @property
    def plain_ms(self) -> float:
        """A target pass over one token."""
        return self.costs.ms(1, _CTX)

    def best_chain(self, agreement: float, cost: float) -> tuple[int, float]:
        """The depth of the chain with most tokens a millisecond, among those whose passes were timed, and its speed
        over plain decoding's, if every drafted token is accepted with the chance `agreement` and a draft pass takes
        `cost` target passes.
        """
        found = {}
        for size in self.costs.sizes[1:]:
            tokens = sum(agreement**i for i in range(size))
            found[size - 1] = tokens / (self.costs.ms(size, _CTX) / self.plain_ms + (size - 1) * cost)
        best = max(found, key=lambda depth: found[depth])
        return best, found[best]


@dataclass(frozen=True)
class Quality:
    """agreement: share of positions where the draft's likeliest token is the target's. overlap: mean over positions of
    the sum of the smaller of both probabilities, at TEMPERATURE. ms: of a draft pass over one token. cost: the same in
    target passes. depth: of the chain that is expected to be the fastest. speedup: expected of it against plain
    decoding, our own overhead aside.
    """

    agreement: float
    overlap: float
    ms: float
    cost: float
    depth: int
    speedup: float

    def as_json(self) -> dict[str, Any]:
        return {
            "agreement": round(self.agreement, 4),
            "overlap": round(self.overlap, 4),
            "ms": round(self.ms, 4),
            "cost": round(self.cost, 4),
            "chain": self.depth,
            "expected_speedup": round(self.speedup, 3),
        }


def read_target(path: Path, show: Callable[[str], None], note: Callable[[str], None]) -> Reference:
    """Load the target, time its passes and let it write. `show` may raise, to stop this between two passes.

    Raises PairError for a recurrent model, ModelFileError and LlamaError for one that cannot be loaded.
    """
    show("loading the target")
    with _loaded(path) as model:
        for notice in model.notices:
            note(notice)
        if not model.llama_model.can_hold_tree:
            raise PairError(f"{path.name} is recurrent and cannot take tokens back: no draft makes it faster")
        prompts = _prompts(model)
        costs = _costs(model.engine.target, prompts, show)
        count = int(1e3 * _WRITING_SECONDS / costs.ms(1, _CTX) / len(prompts))
        count = max(_FEWEST_TOKENS, min(_TOKENS, count))
        passages = []
        for i, prompt in enumerate(prompts, 1):
            passages.append(_written(model, prompt, count, show, f"text {i} of {len(prompts)} by the target"))
        return Reference(path, passages, costs)


def measure(path: Path, reference: Reference, show: Callable[[str], None]) -> Quality:
    """Load a draft beside the target, as in use, and compare it. Raises PairError if it cannot draft for the target,
    ModelFileError or LlamaError if it cannot be run.
    """
    show("loading")
    with _loaded(reference.target, path) as model:
        if model.engine.draft is None:
            raise PairError(f"{path.name} is recurrent")
        draft = TargetContext(model.engine.draft.context)  # what reads a whole text in one pass
        agreed, shared = [], []
        for passage in reference.passages:
            show("comparing")
            rows = _read(draft, passage)
            agreed.append(rows.argmax(axis=1) == passage.best)
            chances = np.take_along_axis(_softmax(rows), passage.tokens, axis=1)
            shared.append(np.minimum(chances, passage.probabilities).sum(axis=1))
        if not all(np.isfinite(found).all() for found in shared):
            raise ModelFileError(f"{path.name} computes no numbers")
        ms, cost = _cost(model.engine.target, draft, reference.passages[0].prompt, show)
    agreement, overlap = float(np.concatenate(agreed).mean()), float(np.concatenate(shared).mean())
    return Quality(agreement, overlap, ms, cost, *reference.best_chain(agreement, cost))


def _loaded(target: Path, draft: Path | None = None) -> Model:
    plan = CHAIN.plan(depth=_TOKENS - 1)
    return Model(RunOptions(target, draft, (plan if draft else OFF.plan(),), largest=plan))


def _prompts(model: Model) -> list[list[int]]:
    template = chat_template(model.llama_model)
    room = model.engine.ctx_size - _TOKENS
    if room < 1:
        raise ModelFileError(
            f"{model.llama_model.name} has a context of {model.engine.ctx_size} tokens, too few to measure"
        )
    return [single_turn_tokens(model.llama_model, text.prompt, template)[:room] for text in texts.shipped("calibrate")]


def _costs(target: TargetContext, prompts: list[list[int]], show: Callable[[str], None]) -> CostTable:
    end = time.perf_counter() + _TIMING_SECONDS

    def over() -> bool:
        show("timing passes of the target")
        return time.perf_counter() > end

    timer = TargetTimer(target, [token for prompt in prompts for token in prompt], _SIZES[-1])
    return CostTable(rounds(timer, _CTX, _SIZES, _ROUNDS, over).times())


def _cost(
    target: TargetContext, draft: TargetContext, tokens: list[int], show: Callable[[str], None]
) -> tuple[float, float]:
    """Milliseconds of a draft pass over one token, and the same in target passes. Both take turns, so that what
    disturbs one disturbs the other.
    """
    timers = [TargetTimer(context, tokens, 1) for context in (draft, target)]
    times: list[list[float]] = []
    for timer in timers:
        timer.fill(_CTX)
        timer.ms(1)
    end = time.perf_counter() + _TIMING_SECONDS
    while len(times) < _FEWEST_TURNS or (len(times) < _TURNS and time.perf_counter() < end):
        show("timing")
        times.append([timer.ms(1) for timer in timers])
    ms, plain_ms = np.median(np.array(times), axis=0).tolist()
    return ms, ms / plain_ms


def _written(model: Model, prompt: list[int], count: int, show: Callable[[str], None], what: str) -> Passage:
    """At most `count` tokens behind a prompt, fewer if the target ends its text."""
    target = model.engine.target
    sampler = Sampler(SamplingParameters(temperature=TEMPERATURE), target.n_vocab)
    target.set_prompt(prompt)
    written: list[int] = []
    best, tokens, probabilities = [], [], []
    while len(written) < count and not (written and model.llama_model.is_end_of_generation(written[-1])):
        show(what)
        root = TokenTree.root_only(target.tokens[-1])
        logits = target.score(root)[0]
        chances = _softmax(logits[None])[0]
        kept = np.argpartition(-chances, min(_KEPT, len(chances)) - 1)[:_KEPT]
        best.append(int(logits.argmax()))
        tokens.append(kept)
        probabilities.append(chances[kept])
        written.append(sampler.sample(logits, len(target.tokens), []))
        target.commit(root, [0], written[-1])
    return Passage(target.n_vocab, prompt, written, np.array(best), np.stack(tokens), np.stack(probabilities))


def _read(draft: TargetContext, passage: Passage) -> NDArray[np.float32]:
    """float32[n, n_vocab of the target]: the draft's logits at the positions that the target wrote. As in use, a token
    that only the target has is read as token 0.
    """
    text = [token if token < draft.n_vocab else 0 for token in [*passage.prompt, *passage.written[:-1]]]
    start = len(passage.prompt)
    draft.set_prompt(text[:start])
    rows = draft.score(TokenTree.chain(text[start - 1 :])).copy()
    draft.drop_tree()
    lacking = passage.n_vocab - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, lacking)), constant_values=-np.inf) if lacking > 0 else rows[:, : passage.n_vocab]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities at TEMPERATURE. float64[n, n_vocab]."""
    scaled = logits.astype(np.float64) / TEMPERATURE
    exponentials = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
