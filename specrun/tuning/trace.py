"""What the draft proposes at every position of texts that the target wrote, recorded so that any plan can be replayed.

With shared noise, and greedily, the target's token at a position is the same under every plan. So the text is fixed,
and what a plan would have committed from a position follows from the draft's candidates there: one recording is enough
to replay all plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from specrun.profiles.profile import Acceptance
from specrun.sampling import Candidates
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.growth import CandidateSource, TreeGrowth
from specrun.speculation.planning.calibration import Calibration

Path = tuple[int, ...]  # tokens from below the root to a node; the root itself is ()

_NOT_RECORDED = -2  # equals no token, so that a node drafted where nothing was recorded is rejected
_NOTHING = Candidates(np.empty(0, np.int64), np.empty(0, np.float64))


@dataclass
class Position:
    """One position of a text, with the draft's candidates below every path that was expanded there."""

    ctx: int  # tokens before the position, the root among them
    continuation: list[int]  # what the target wrote from there on
    children: dict[Path, Candidates] = field(default_factory=dict)

    def matched_rank(self, path: Path) -> int | None:
        """The rank of the target's own token among the candidates below `path`, which the target must have written."""
        if len(path) >= len(self.continuation):
            return None
        ranks = np.flatnonzero(self.children[path].tokens == self.continuation[len(path)])
        return int(ranks[0]) if len(ranks) else None

    def accepted_paths(self) -> Iterator[Path]:
        """The expanded paths that the target's own text follows, shortest first."""
        path: Path = ()
        while path in self.children and len(path) < len(self.continuation):
            yield path
            path = (*path, self.continuation[len(path)])


@dataclass
class Trace:
    """The recorded positions of one text, in order."""

    positions: list[Position]
    n_draft_passes: int = 0  # that the recording took

    @property
    def n_nodes(self) -> int:
        """The nodes that the draft passes expanded."""
        return sum(len(position.children) for position in self.positions)


@dataclass(frozen=True)
class MeasuredAcceptance:
    """The acceptance at one temperature, with the recordings it was measured on, for replays."""

    acceptance: Acceptance
    traces: list[Trace]

    def calibrations_of_others(self) -> list[Calibration]:
        """For each text, a calibration on all others: by its own, an adaptive tree would know too well what follows."""
        if len(self.traces) == 1:
            return [self.acceptance.calibration]
        return [calibrate([*self.traces[:i], *self.traces[i + 1 :]]) for i in range(len(self.traces))]


class _Recorder:
    """A source that asks another one, stores its candidates in a position and counts the draft passes."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source
        self.position = Position(0, [])
        self.n_passes = 0

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        self.n_passes += 1
        candidates = self._source.children(growth, nodes)
        for node, below in zip(nodes, candidates, strict=True):
            self.position.children[tuple(growth.path(node))] = below
        return candidates

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        return self._source.expandable(parents, width)


class Replay:
    """A source whose candidates are those recorded at one position; elsewhere it has none.

    widths: nodes of each draft pass that a drafter has asked for.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self.widths: list[int] = []

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        self.widths.append(len(nodes))
        return [self._position.children.get(tuple(growth.path(node)), _NOTHING) for node in nodes]

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        tokens = self.children(growth, [node])[0].tokens
        return int(tokens[0]) if len(tokens) else _NOT_RECORDED

    def expandable(self, parents: Sequence[int], width: int) -> Sequence[int]:
        return range(min(len(parents), width))


def record(
    source: CandidateSource,
    prompt: list[int],
    written: list[int],
    n_positions: int,
    limits: DraftLimits,
    sharpness: float,
) -> Trace:
    """Draft a tree behind each of the first `n_positions` of a text.

    written: what the target wrote behind `prompt`; longer than `n_positions`, by the tokens that a pass may commit.
    limits: bounds of the trees, at least those of any plan to be replayed.
    sharpness: the drafter's, see `sharpness_at`.
    """
    recorder, positions = _Recorder(source), []
    for start in range(min(n_positions, len(written))):
        committed = prompt + written[:start]
        recorder.position = Position(len(committed), written[start:])
        SpecExecDrafter(recorder, sharpness).draft(committed, limits)
        positions.append(recorder.position)
    return Trace(positions, recorder.n_passes)


def calibrate(traces: Sequence[Trace]) -> Calibration:
    """A calibration that counts which candidates the target accepted, at every depth of every position."""
    calibration = Calibration()
    for trace in traces:
        for position in trace.positions:
            for path in position.accepted_paths():
                candidates = position.children[path]
                if not len(candidates.tokens):
                    break
                calibration.count(len(path) + 1, candidates.shares, position.matched_rank(path), recent=False)
    calibration.settle()
    return calibration
