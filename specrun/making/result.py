"""The result of `specrun models make-draft`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrun.making.candidates import SAME, Candidate
from specrun.making.measuring import Quality

_UNQUANTIZED = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Outcome:
    """The result for one candidate."""

    candidate: Candidate
    n_bytes: int  # of its file; of its weights if it was not written; 0 if unknown
    quality: Quality | None = None  # None if it was skipped
    reason: str = ""  # why it was skipped

    def as_json(self) -> dict[str, Any]:
        value = {"name": self.candidate.name, "type": self.candidate.type, "layers": len(self.candidate.kept)}
        return value | {"bytes": self.n_bytes} | (self.quality.as_json() if self.quality else {"skipped": self.reason})


@dataclass(frozen=True)
class Result:
    """The result of the whole run."""

    target: Path
    quantization: str  # of the target
    target_bytes: int  # of the target's weights
    plain_ms: float  # milliseconds of a target pass over one token
    outcomes: list[Outcome]  # of all candidates, in the order in which they were tried
    best: Outcome  # the one whose draft was kept
    path: Path  # of the draft that was kept
    rival: Quality | None  # of the draft that would be used without a made one

    @property
    def remark(self) -> str | None:
        """A sentence about the effect of the target's quantization on its drafts; None for an unquantized target."""
        if all(outcome.candidate.type == SAME for outcome in self.outcomes):
            return f"{self.target.name} is {self.quantization}: its weights were kept, and layers left out"
        if self.quantization not in _UNQUANTIZED:
            return f"{self.target.name} is {self.quantization} already; drafts made from its F16 file would be better"
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "target": {"path": str(self.target), "bytes": self.target_bytes, "ms": round(self.plain_ms, 4)},
            "draft": {"path": str(self.path), **self.best.as_json()},
            "candidates": [outcome.as_json() for outcome in self.outcomes],
            "usual_draft": self.rival.as_json() if self.rival else None,
        }
