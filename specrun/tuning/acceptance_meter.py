"""Measures which of the draft's tokens the target accepts, and the time of specrun's own work meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from specrun.engine.engine import Engine
from specrun.engine.growth_maps import PositionalMeter
from specrun.long_run import Run
from specrun.profiles.profile import Acceptance
from specrun.sampling import Sampler, SamplingParameters
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.specexec import sharpness_at
from specrun.speculation.growth import ModelCandidates
from specrun.speculation.planning.costs import CostModel
from specrun.speculation.planning.plan_space import deepest, largest_that_pays
from specrun.tuning.text_writer import Text, write_together
from specrun.tuning.trace import MeasuredAcceptance, Trace, calibrate, record

TAIL = 12  # tokens written behind the last recorded position, so that the end of the text cuts few passes short
_MIN_POSITIONS = 12  # positions of a text
_LOOK = 4  # positions that are recorded to know the time of each
_LONGEST = 3600.0  # seconds; stands for no deadline
_WRITING = 0.6  # share of the time for writing; the rest is for recording

Prompt = tuple[str, list[int]]  # the kind of text, and token ids


class AcceptanceMeter:
    """Lets the target write texts, and records what the draft proposes along them.

    engine: its contexts must hold trees of `budget` nodes.
    costs: pass times; the recorded trees are as deep as could pay with them.
    budget: most nodes of a recorded tree; it has fewer where larger ones are far from paying.
    width: nodes that a draft pass expands.
    """

    def __init__(self, engine: Engine, costs: CostModel, budget: int, width: int) -> None:
        assert engine.draft is not None, "only pairs are measured"
        self._engine = engine
        self._draft = engine.draft
        self._costs = costs
        self._budget = budget
        self._width = width
        self._draft_overheads: list[tuple[int, int, float]] = []  # draft passes, nodes, milliseconds; one for each text

    def measure(
        self, prompts: Sequence[Prompt], temperatures: Sequence[float], n_positions: int, run: Run
    ) -> list[MeasuredAcceptance]:
        """Write a text behind every prompt at every temperature, and record at most `n_positions` of each.

        There are fewer positions, but not fewer texts, where that is needed to meet the run's deadline.
        """
        writing = run.stage(_WRITING * max(run.deadline - time.perf_counter(), 0.0))
        token_ids = [prompt for _, prompt in prompts]
        least, most = _MIN_POSITIONS + TAIL, n_positions + TAIL
        pass_ms = self._costs.target.ms(len(token_ids) * len(temperatures), 0)
        left_ms = 1e3 * min(writing.deadline - time.perf_counter(), _LONGEST)
        # Several groups read all weights several times, for which there must be time.
        groups = max(int(left_ms / (most * pass_ms)), 1)
        target = self._engine.target
        by_temperature = write_together(target, token_ids, temperatures, least, most, writing, groups)
        results = []
        for i, (temperature, texts) in enumerate(by_temperature.items()):
            stage = run.stage((run.deadline - time.perf_counter()) / (len(by_temperature) - i))
            results.append(self._measured(temperature, texts, stage))
        return results

    def _measured(self, temperature: float, texts: Sequence[Text], run: Run) -> MeasuredAcceptance:
        meter = PositionalMeter(self._engine, SamplingParameters(temperature=temperature))
        for text in texts:
            meter.add(text.prompt + text.written, len(text.prompt) - 1, text.distributions)
        positional = meter.vector()
        depth = deepest(self._costs, positional)
        # The target's passes commit more at once with a good draft, so the end of a text cuts more of them short.
        tail = min(max(TAIL, depth // 3), len(texts[0].written) // 2)
        n_positions = max(len(texts[0].written) - tail, 1)
        budget = max(largest_that_pays(self._costs, positional, self._budget), 2)
        width = min(self._width, max(budget // 4, 2))
        limits = DraftLimits(budget, min(depth, budget - 1), width, self._engine.target.max_leaves)
        traces: list[Trace] = []
        for i, text in enumerate(texts):
            run.show(f"acceptance at temperature {temperature:g}, text {i + 1} of {len(texts)}")
            if i == 0:
                n_positions = self._affordable(text, n_positions, limits, len(texts), run)
            traces.append(self._record(text, n_positions, limits))
        n_recorded = sum(len(trace.positions) for trace in traces)
        return MeasuredAcceptance(Acceptance(temperature, calibrate(traces), positional, n_recorded), traces)

    def _affordable(self, text: Text, n_positions: int, limits: DraftLimits, n_texts: int, run: Run) -> int:
        """How many positions of each text can be recorded before the deadline, by the time that a few take."""
        self._record(text, 1, limits)  # the draft has to read the prompt first
        self._draft_overheads.clear()
        started = time.perf_counter()
        self._record(text, _LOOK, limits)
        seconds = (time.perf_counter() - started) / _LOOK
        affordable = (run.deadline - time.perf_counter()) / (n_texts * seconds)
        return int(np.clip(affordable, min(_MIN_POSITIONS, n_positions), n_positions))

    def _record(self, text: Text, n_positions: int, limits: DraftLimits) -> Trace:
        source = ModelCandidates(self._draft, Sampler(text.sampling, self._engine.target.n_vocab))
        context = self._draft.context
        self._engine.read_for_draft(text.prompt + text.written)
        started, decode_seconds = time.perf_counter(), context.decode_seconds
        sharpness = sharpness_at(text.sampling.temperature)
        trace = record(source, text.prompt, text.written, n_positions, limits, sharpness)
        overhead = time.perf_counter() - started - (context.decode_seconds - decode_seconds)
        self._draft_overheads.append((trace.n_draft_passes, trace.n_nodes, 1e3 * overhead))
        return trace

    def draft_overhead(self) -> tuple[float, float]:
        """Milliseconds of specrun's own time for the mean draft pass and for the mean expanded node."""
        n_passes, n_nodes, ms = np.sum(np.array(self._draft_overheads), axis=0)
        # Half goes with the passes and half with the nodes. The split matters little, as widths vary little.
        return 0.5 * float(ms / n_passes), 0.5 * float(ms / n_nodes)
