"""The whole engine in random order: whatever was written before, a text is what plain decoding writes, bit for bit.

Prompts that share a beginning with the text before; plain decoding, chains and trees; greedy, sampled and with
penalties; texts that are abandoned after any pass, passes of target and draft that fail
or are interrupted at any moment, and emptied caches. Every committed token, and every logit that it was sampled from,
is compared with plain decoding in a fresh context.
"""

from __future__ import annotations

import zlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specrun.decoding import passes as pass_module
from specrun.decoding.engine import Engine
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, Logits
from specrun.llama.target import score_together
from specrun.llama_settings import LlamaSettings
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.tree import TokenTree
from tests.engines import chooser, engine
from tests.soak.failing import MOMENTS, Moment, OnPurposeError, failing
from tests.soak.fresh import Fresh, check_cache, check_lengths, opened

LARGEST = SPECEXEC.plan(32, 8)
PLANS = (
    OFF.plan(),
    CHAIN.plan(depth=4),
    SPECEXEC.plan(12, 4),
    LARGEST,
    CHAIN.plan(depth=3),
    ADAPTIVE.plan(32, 8, 8),
    MERGED.plan(32, 8, 8),
    DRAFTLESS.plan(16),
)
SAMPLINGS = (
    SamplingParameters(temperature=0),
    SamplingParameters(temperature=0.8),
    SamplingParameters(temperature=1.0, top_k=0, top_p=1, min_p=0, repeat_penalty=1.2),
)
SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.sampled_from([0.0, 0.5, 1.0])
_LONGEST = 200
_CTX_SIZE = 280


@dataclass(frozen=True)
class Pair:
    """target, draft: two GGUF files."""

    target: Path
    draft: Path


class EngineStates(RuleBasedStateMachine):
    """pair: set by whoever runs it. counts: what was done so far, by all machines together."""

    pair: ClassVar[Pair]
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.counts["examples"] += 1

    @initialize()
    def begin(self) -> None:
        pair = self.pair
        self.engine: Engine = self.resources.enter_context(engine(pair.target, pair.draft, LARGEST, _CTX_SIZE))
        self.model = self.resources.enter_context(LlamaModel(pair.target))
        settings = LlamaSettings(threads=1, type_v="bf16")
        self.fresh = Fresh(opened(self.model, ContextConfig(_CTX_SIZE + 64, 1, 512, 1, settings)))

    def teardown(self) -> None:
        self.resources.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(
        plan=st.sampled_from(PLANS),
        sampling=st.sampled_from(SAMPLINGS),
        keep=SHARES,
        n_new=st.integers(0, 40),
        max_tokens=st.integers(1, 24),
        most_passes=st.integers(1, 24),
        seed=SEEDS,
    )
    def write(
        self,
        plan: Plan,
        sampling: SamplingParameters,
        keep: float,
        n_new: int,
        max_tokens: int,
        most_passes: int,
        seed: int,
    ) -> None:
        """A text, given up after `most_passes` passes."""
        self._written(plan, replace(sampling, seed=seed), self._prompt(keep, n_new, seed), max_tokens, most_passes)

    @rule(
        plan=st.sampled_from(PLANS),
        is_target=st.booleans(),
        moment=st.sampled_from(MOMENTS),
        after=st.integers(0, 12),
        keep=SHARES,
        seed=SEEDS,
    )
    def write_with_a_failure(
        self, plan: Plan, is_target: bool, moment: Moment, after: int, keep: float, seed: int
    ) -> None:
        """A text in which a pass fails or is interrupted."""
        assert self.engine.draft
        context = self.engine.target.context if is_target else self.engine.draft.context
        prompt = self._prompt(keep, 20, seed)
        with failing(context, moment, after):
            try:
                self._written(plan, replace(SAMPLINGS[1], seed=seed), prompt, 16, 16)
            except OnPurposeError:
                self.counts["failed passes"] += 1
        self._written(plan, replace(SAMPLINGS[1], seed=seed), prompt, 4, 4)

    @rule()
    def reset(self) -> None:
        self.engine.reset()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_caches_are_right(self) -> None:
        self.counts["steps"] += 1
        assert self.engine.draft
        check_lengths(self.engine.target.context)
        check_lengths(self.engine.draft.context)
        check_cache(self.engine.target, self.fresh)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _prompt(self, keep: float, n_new: int, seed: int) -> list[int]:
        before = self.engine.target.tokens
        kept = before[: min(round(keep * len(before)), _LONGEST - n_new)]
        new = np.random.default_rng(seed).integers(self.model.n_vocab, size=n_new or int(not kept))
        return [*kept, *new.tolist()]

    def _written(
        self, plan: Plan, sampling: SamplingParameters, prompt: list[int], max_tokens: int, most_passes: int
    ) -> None:
        """Write, and compare what is written with plain decoding."""
        scored: list[Logits] = []

        def recorded(texts: Any, reading: Any, least: int = 0) -> list[Logits]:
            scored.extend(score_together(texts, reading, least))
            return scored[-len(texts) :]

        tokens: list[int] = []
        rows: list[int] = []
        with patch.object(pass_module, "score_together", recorded):
            # The models know no end of a text, so that all tokens are committed.
            passes = write_alone(
                Generation(self.engine, Request(prompt, sampling, max_tokens, ignore_eos=True), chooser(plan))
            )
            for n_passes, one in enumerate(passes, start=1):
                tokens += one.tokens
                rows += [_checksum(scored[-1][node]) for node in one.accepted.path[: len(one.tokens)]]
                self.counts["trees"] += len(one.tree) > 1
                if n_passes == most_passes:
                    break
        self.counts["texts"] += 1
        self.counts["tokens"] += len(tokens)
        assert (tokens, rows) == self._plain(sampling, prompt, len(tokens))

    def _plain(self, sampling: SamplingParameters, prompt: list[int], n: int) -> tuple[list[int], list[int]]:
        sampler = Sampler(sampling, self.model.n_vocab)
        text, rows = list(prompt), []
        with self.fresh.open() as context:
            target = TargetContext(context)
            target.set_prompt(text)
            for _ in range(n):
                root = TokenTree.root_only(text[-1])
                row = target.score(root)[0]
                text.append(sampler.sample(row, len(text), sampler.recent(text)))
                rows.append(_checksum(row))
                target.commit(root, [0], text[-1])
        return text[len(prompt) :], rows


def _checksum(row: Logits) -> int:
    return zlib.crc32(np.ascontiguousarray(row).tobytes())
