"""Writes texts with the target, records what the draft proposes along them, and measures our own overhead doing so."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specrun.engine.decoding import Engine
from specrun.engine.positional_meter import PositionalMeter
from specrun.engine.request import Request
from specrun.sampling import Candidates, Sampler, SamplingParameters
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.specexec import sharpness_at
from specrun.speculation.growth import ModelCandidates, TreeGrowth
from specrun.speculation.plan import Plan
from specrun.speculation.planning.calibration import Calibration
from specrun.speculation.planning.costs import Overhead
from specrun.speculation.record import PassRecord
from specrun.tuning.trace import Trace, calibrate, record

# Behind the last position that is recorded, so that few passes are cut short by the end of the text.
TAIL = 12
_FEWEST_POSITIONS = 10
_FEWEST_TEXTS = 2
_DEPTH = 16


@dataclass
class Acceptance:
    """What is accepted at one temperature. positional: chance of the k-th candidate, with sample and match. sampled: of
    the k-th draw without replacement. traces: for replaying plans, not kept in a profile.
    """

    temperature: float
    calibration: Calibration
    positional: list[float]
    sampled: list[float]
    n_positions: int
    traces: list[Trace] = field(default_factory=list)

    @property
    def sharpness(self) -> float:
        return sharpness_at(self.temperature)

    def as_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "positional": self.positional,
            "sampled": self.sampled,
            "positions": self.n_positions,
            "calibration": self.calibration.as_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Acceptance:
        """Raises KeyError, TypeError or ValueError for a value that is not that of `as_json`."""
        return cls(
            float(value["temperature"]),
            Calibration.from_json(value["calibration"]),
            [float(p) for p in value["positional"]],
            [float(p) for p in value["sampled"]],
            int(value["positions"]),
        )


class _Watch:
    """Our own time in drafting: of whole tree growths, less llama.cpp's passes, by draft passes and nodes."""

    def __init__(self, source: ModelCandidates) -> None:
        self._source = source
        self.levels = 0
        self.nodes = 0

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        self.levels += 1
        self.nodes += len(nodes)
        return self._source.children(growth, nodes)

    def expandable(self, parents: Sequence[int]) -> int:
        return self._source.expandable(parents)


@dataclass
class _Steps:
    """A plan that keeps the records of its steps."""

    current: Plan
    guide: None = None
    records: list[PassRecord] = field(default_factory=list)

    def begin(self, temperature: float) -> None:
        """One plan for every temperature."""

    def record(self, step: PassRecord) -> None:
        self.records.append(step)


class AcceptanceMeter:
    """Measures acceptance with an engine whose contexts hold trees of `budget` nodes.

    write_plan: the plan to write the texts with; any gives the same text. budget, width: of the trees that are
    recorded.
    """

    def __init__(self, engine: Engine, write_plan: Plan, budget: int, width: int) -> None:
        self._engine = engine
        self._write_plan = write_plan
        self._limits = DraftLimits(budget, _DEPTH, width, engine.target.max_leaves)
        self._token_seconds = 0.0
        self._step_overheads: list[float] = []
        self._draft_overheads: list[tuple[int, int, float]] = []

    def measure(
        self,
        prompts: Sequence[tuple[str, list[int]]],
        temperature: float,
        n_positions: int,
        seconds: float,
        progress: Callable[[str], None],
    ) -> Acceptance:
        """Over prompts (kind, token ids): write at most `n_positions` and a tail behind each, and record them.

        So many positions, and then so many texts, that it takes about `seconds`, but two texts at least.
        """
        sampling = SamplingParameters(temperature=temperature)
        traces: list[Trace] = []
        positional = PositionalMeter(sampling)
        end = time.perf_counter() + seconds
        for i, (kind, prompt) in enumerate(prompts):
            if i >= _FEWEST_TEXTS and time.perf_counter() > end:
                break
            count = self._positions(n_positions, end - time.perf_counter(), len(prompts) - i)
            text_started = time.perf_counter()
            progress(f"acceptance at temperature {temperature:g}, text {i + 1} of {len(prompts)} ({kind})")
            written = self._write(prompt, sampling, count + TAIL)
            traces.append(self._record(kind, prompt, written, sampling, count))
            positional.add(self._engine, prompt + written, skip=len(prompt) - 1)
            self._token_seconds = (time.perf_counter() - text_started) / len(written)
        return Acceptance(
            temperature,
            calibrate(traces),
            *positional.vectors(),
            sum(len(trace.positions) for trace in traces),
            traces,
        )

    def _positions(self, most: int, seconds: float, n_texts: int) -> int:
        """Positions of the next text, so that it and those after it fit the time. The first of all is short."""
        if not self._token_seconds:
            return min(most, 2 * _FEWEST_POSITIONS)
        return max(_FEWEST_POSITIONS, min(most, int(seconds / (n_texts * self._token_seconds)) - TAIL))

    def _write(self, prompt: list[int], sampling: SamplingParameters, n_tokens: int) -> list[int]:
        self._engine.reset()
        steps = _Steps(self._write_plan)
        written: list[int] = []
        for one in self._engine.generate(Request(prompt, sampling, n_tokens, ignore_eos=True), steps):
            written += one.tokens
        self._step_overheads += [1e3 * (s.seconds - s.target_seconds - s.draft_seconds) for s in steps.records]
        return written

    def _record(
        self, kind: str, prompt: list[int], written: list[int], sampling: SamplingParameters, n_positions: int
    ) -> Trace:
        draft = self._engine.draft
        assert draft is not None, "only pairs are measured"
        sampler = Sampler(sampling, self._engine.target.n_vocab)
        watch = _Watch(ModelCandidates(draft, sampler))
        started, in_llama = time.perf_counter(), draft.context.decode_seconds
        trace = record(watch, kind, prompt, written, n_positions, self._limits, sharpness_at(sampling.temperature))
        ours = time.perf_counter() - started - (draft.context.decode_seconds - in_llama)
        self._draft_overheads.append((watch.levels, watch.nodes, 1e3 * ours))
        return trace

    def overhead(self) -> Overhead:
        """Milliseconds of our own, of a median step and of a mean draft pass; nodes share in proportion."""
        levels, nodes, ms = np.sum(np.array(self._draft_overheads), axis=0)
        step = float(np.median(self._step_overheads)) if self._step_overheads else 0.0
        # Half of it goes with the passes and half with the nodes: the split matters little, as widths vary little.
        return Overhead(step, 0.5 * float(ms / levels), 0.5 * float(ms / nodes))
