"""What a run of `specrun models make-draft` found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.making.candidates import SAME, Candidate
from specrun.making.measuring import Quality

_UNQUANTIZED = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate. n_bytes: of its weights, 0 if it is not known; of its file, once it was made.
    quality None: it was skipped, and reason says why.
    """

    candidate: Candidate
    n_bytes: int
    quality: Quality | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        value = {"name": self.candidate.name, "type": self.candidate.type, "layers": len(self.candidate.kept)}
        return value | {"bytes": self.n_bytes} | (self.quality.as_json() if self.quality else {"skipped": self.reason})


@dataclass(frozen=True)
class Result:
    """quantization, target_bytes: of the target's weights. plain_ms: of a target pass over one token. outcomes: of all
    candidates, in the order in which they were tried. best: the one that was kept, at `path`. rival: the draft that
    would have been taken.
    """

    target: Path
    quantization: str
    target_bytes: int
    plain_ms: float
    outcomes: list[Outcome]
    best: Outcome
    path: Path
    rival: Quality | None

    @property
    def remark(self) -> str | None:
        """What the target's own quantization means for its drafts."""
        if all(outcome.candidate.type == SAME for outcome in self.outcomes):
            return f"{self.target.name} is {self.quantization}: its weights were kept, and layers left out"
        if self.quantization not in _UNQUANTIZED:
            return f"{self.target.name} is {self.quantization} already; made from its F16 file, drafts would lose less"
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "target": {"path": str(self.target), "bytes": self.target_bytes, "ms": round(self.plain_ms, 4)},
            "draft": {"path": str(self.path), **self.best.as_json()},
            "candidates": [outcome.as_json() for outcome in self.outcomes],
            "usual_draft": self.rival.as_json() if self.rival else None,
        }
