"""What the draft proposes at every position of texts that the target wrote, kept so that any plan can be replayed.

With shared noise (and greedily) the target's token at a position is the same in every plan, so the text is known, and
what a plan would have committed from a position follows from the draft's candidates there. One recording stands for
runs of all plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specrun.sampling import Candidates
from specrun.speculation.drafter import DraftLimits
from specrun.speculation.drafters.specexec import SpecExecDrafter
from specrun.speculation.growth import CandidateSource, TreeGrowth
from specrun.speculation.planning.calibration import Calibration

Path = tuple[int, ...]

_NOT_RECORDED = -2  # a token that matches no other: the plan drafts on, and what it drafts is rejected
_NOTHING = Candidates(np.empty(0, np.int64), np.empty(0, np.float64))


@dataclass
class Position:
    """Candidates below every path that was expanded behind one position of a text. continuation: what the target
    wrote from there. ctx: tokens before it, the root among them.
    """

    ctx: int
    continuation: list[int]
    children: dict[Path, Candidates] = field(default_factory=dict)

    def matched_rank(self, path: Path) -> int | None:
        """The rank of the target's own token among the candidates below `path`, which the target must have written."""
        depth = len(path)
        if depth >= len(self.continuation):
            return None
        found = np.flatnonzero(self.children[path].tokens == self.continuation[depth])
        return int(found[0]) if len(found) else None

    def accepted_path(self) -> Iterator[Path]:
        """The expanded paths that the target's own text follows, shortest first."""
        path: Path = ()
        while path in self.children and len(path) < len(self.continuation):
            yield path
            path = (*path, self.continuation[len(path)])


@dataclass
class Trace:
    """The positions of one text, in order. kind: of the text (code, chat, ...)."""

    kind: str
    positions: list[Position]

    def as_json(self) -> dict[str, Any]:
        """For a run that is taken up again later."""
        return {
            "kind": self.kind,
            "positions": [
                {
                    "ctx": position.ctx,
                    "continuation": position.continuation,
                    "children": [
                        [list(path), found.tokens.tolist(), found.scores.round(4).tolist()]
                        for path, found in position.children.items()
                    ],
                }
                for position in self.positions
            ],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trace:
        """Raises KeyError, TypeError or ValueError for a value that is not that of `as_json`."""
        return cls(
            value["kind"],
            [
                Position(
                    entry["ctx"],
                    entry["continuation"],
                    {
                        tuple(path): Candidates(np.array(tokens, np.int64), np.array(scores, np.float64))
                        for path, tokens, scores in entry["children"]
                    },
                )
                for entry in value["positions"]
            ],
        )


class _Recorder:
    """Passes on what a source says, and notes it."""

    def __init__(self, source: CandidateSource, position: Position) -> None:
        self._source = source
        self._position = position

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        candidates = self._source.children(growth, nodes)
        for node, found in zip(nodes, candidates, strict=True):
            self._position.children[tuple(growth.path(node))] = found
        return candidates

    def expandable(self, parents: Sequence[int]) -> int:
        return self._source.expandable(parents)


class Replay:
    """A source that knows what was recorded at one position, and nothing below. `widths` are its draft passes."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self.widths: list[int] = []

    def children(self, growth: TreeGrowth, nodes: Sequence[int]) -> list[Candidates]:
        self.widths.append(len(nodes))
        return [self._position.children.get(tuple(growth.path(node)), _NOTHING) for node in nodes]

    def favourite(self, growth: TreeGrowth, node: int) -> int:
        tokens = self.children(growth, [node])[0].tokens
        return int(tokens[0]) if len(tokens) else _NOT_RECORDED

    def expandable(self, parents: Sequence[int]) -> int:
        return len(parents)


def record(
    source: CandidateSource,
    kind: str,
    prompt: list[int],
    written: list[int],
    n_positions: int,
    limits: DraftLimits,
    sharpness: float,
) -> Trace:
    """Draft behind the first `n_positions` of a text.

    limits: of the trees, at least as large as any plan to be replayed. written: what the target wrote after `prompt`,
    longer than `n_positions` by what a pass may commit.
    """
    positions = []
    for start in range(min(n_positions, len(written))):
        committed = prompt + written[:start]
        position = Position(len(committed), written[start:])
        SpecExecDrafter(_Recorder(source, position), sharpness).draft(committed, limits)
        positions.append(position)
    return Trace(kind, positions)


def calibrate(traces: Sequence[Trace]) -> Calibration:
    """Count which candidates the target accepted, at every depth of every position."""
    calibration = Calibration()
    for trace in traces:
        for position in trace.positions:
            for path in position.accepted_path():
                candidates = position.children[path]
                if not len(candidates.tokens):
                    break
                calibration.count(len(path) + 1, candidates.shares, position.matched_rank(path), recent=False)
    calibration.settle()
    return calibration
