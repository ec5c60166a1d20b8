"""Measures which of the draft's tokens the target accepts, and the time of specrun's own work meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun.engine.decoding import Engine
from specrun.engine.positional_meter import PositionalMeter
from specrun.engine.request import Request
from specrun.long_run import Run
from specrun.profiles.acceptance import Acceptance
from specrun.sampling import Candidates, Sampler, SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.specexec import sharpness_at
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.plan import Plan
from specrun.speculation.planning.costs import Overhead
from specrun.speculation.record import PassRecord
from specrun.tuning.trace import MeasuredAcceptance, Trace, calibrate, record

TAIL = 12  # tokens written behind the last recorded position, so that the end of the text cuts few passes short
_MIN_POSITIONS = 10  # positions of a text
_MIN_TEXTS = 2
_DEPTH = 16  # depth of the recorded trees

Prompt = tuple[str, list[int]]  # the kind of text, and token ids


class _CountingSource:
    """A source that asks the draft model, and counts the draft passes and the nodes that they expand."""

    def __init__(self, source: ModelCandidates) -> None:
        self._source = source
        self.n_passes = 0
        self.n_nodes = 0

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        self.n_passes += 1
        self.n_nodes += len(nodes)
        return self._source.children(growth, nodes)

    def expandable(self, parents: Sequence[int]) -> Sequence[int]:
        return self._source.expandable(parents)


@dataclass(frozen=True)
class _RecordedPlan(FixedPlan):
    """A fixed plan that keeps the records of its passes."""

    records: list[PassRecord] = field(default_factory=list)

    def record(self, step: PassRecord) -> None:
        self.records.append(step)


class AcceptanceMeter:
    """Lets the target write texts, and records what the draft proposes along them.

    The engine's contexts must hold trees of `budget` nodes. Texts are written with `write_plan`; every plan writes the
    same text. The recorded trees have `budget` nodes, and a draft pass expands `width` of them.
    """

    def __init__(self, engine: Engine, write_plan: Plan, budget: int, width: int) -> None:
        self._engine = engine
        self._write_plan = write_plan
        self._limits = DraftLimits(budget, _DEPTH, width, engine.target.max_leaves)
        self._token_seconds = 0.0  # time to write and record a token of the last text
        self._pass_overheads: list[float] = []  # milliseconds
        self._draft_overheads: list[tuple[int, int, float]] = []  # draft passes, nodes, milliseconds; one for each text

    def measure(self, prompts: Sequence[Prompt], temperature: float, n_positions: int, run: Run) -> MeasuredAcceptance:
        """Write and record at most `n_positions` tokens behind each prompt.

        The number of positions, and then that of texts, is reduced to meet the run's deadline, to two texts at least.
        """
        sampling = SamplingParameters(temperature=temperature)
        traces: list[Trace] = []
        positional = PositionalMeter(sampling)
        for i, (kind, prompt) in enumerate(prompts):
            if i >= _MIN_TEXTS and run.is_over():
                break
            n_recorded = self._positions(n_positions, run.deadline - time.perf_counter(), len(prompts) - i)
            started = time.perf_counter()
            run.show(f"acceptance at temperature {temperature:g}, text {i + 1} of {len(prompts)} ({kind})")
            written = self._write(prompt, sampling, n_recorded + TAIL)
            traces.append(self._record(prompt, written, sampling, n_recorded))
            positional.add(self._engine, prompt + written, skip=len(prompt) - 1)
            self._token_seconds = (time.perf_counter() - started) / len(written)
        n_positions = sum(len(trace.positions) for trace in traces)
        acceptance = Acceptance(temperature, calibrate(traces), *positional.vectors(), n_positions)
        return MeasuredAcceptance(acceptance, traces)

    def _positions(self, most: int, seconds: float, n_texts: int) -> int:
        """Positions of the next text, such that it and those after it fit into `seconds`. The first text is short."""
        if not self._token_seconds:
            return min(most, 2 * _MIN_POSITIONS)
        affordable = seconds / (n_texts * self._token_seconds)
        return max(_MIN_POSITIONS, int(min(most + TAIL, affordable)) - TAIL)

    def _write(self, prompt: list[int], sampling: SamplingParameters, n_tokens: int) -> list[int]:
        self._engine.reset()
        plan = _RecordedPlan(self._write_plan)
        request = Request(prompt, sampling, n_tokens, ignore_eos=True)
        written = [token for one in self._engine.generate(request, plan) for token in one.tokens]
        self._pass_overheads += [1e3 * (r.seconds - r.target_seconds - r.draft_seconds) for r in plan.records]
        return written

    def _record(self, prompt: list[int], written: list[int], sampling: SamplingParameters, n_positions: int) -> Trace:
        draft = self._engine.draft
        assert draft is not None, "only pairs are measured"
        source = _CountingSource(ModelCandidates(draft, Sampler(sampling, self._engine.target.n_vocab)))
        started, decode_seconds = time.perf_counter(), draft.context.decode_seconds
        trace = record(source, prompt, written, n_positions, self._limits, sharpness_at(sampling.temperature))
        overhead = time.perf_counter() - started - (draft.context.decode_seconds - decode_seconds)
        self._draft_overheads.append((source.n_passes, source.n_nodes, 1e3 * overhead))
        return trace

    def overhead(self) -> Overhead:
        """specrun's own time for the median target pass, for the mean draft pass and for the mean expanded node."""
        n_passes, n_nodes, ms = np.sum(np.array(self._draft_overheads), axis=0)
        target_pass = float(np.median(self._pass_overheads)) if self._pass_overheads else 0.0
        # Half goes with the passes and half with the nodes. The split matters little, as widths vary little.
        return Overhead(target_pass, 0.5 * float(ms / n_passes), 0.5 * float(ms / n_nodes))
