"""What a run of `specrun tune` has measured so far, on disk, so that one that is cut short can go on."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specrun.llama_settings import LlamaSettings
from specrun.locations import write_json
from specrun.profiles.profile_files import folder
from specrun.speculation.planning.costs import CostTable, Overhead
from specrun.tuning.acceptance_meter import Acceptance
from specrun.tuning.trace import Trace

_MOST_SECONDS = 3600.0  # after which a machine may have become another


class Partial:
    """Stages that are over. Every `keep_...` writes the file; a disk that refuses only costs the resuming.

    key: of the fingerprint and the effort; what another key measured is not taken up.
    """

    def __init__(self, fingerprint: str, key: str) -> None:
        self._path = _path(fingerprint)
        self._stages: dict[str, Any] = {"key": key}
        self.is_resumed = False
        try:
            if time.time() - self._path.stat().st_mtime < _MOST_SECONDS:
                stages = json.loads(self._path.read_text(encoding="utf-8"))
                if stages["key"] == key:
                    self._stages = stages
                    self.is_resumed = len(stages) > 1
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def _keep(self, stage: str, value: Any) -> None:
        self._stages[stage] = value
        try:
            write_json(self._path, self._stages)
        except OSError:
            return

    def settings(self) -> tuple[LlamaSettings, list[dict[str, Any]]] | None:
        """What was chosen, and what was tried."""
        value = self._stages.get("settings")
        return (LlamaSettings(**value["chosen"]), value["tried"]) if value else None

    def keep_settings(self, chosen: LlamaSettings, tried: list[dict[str, Any]]) -> None:
        self._keep("settings", {"chosen": asdict(chosen), "tried": tried})

    def table(self, which: str) -> CostTable | None:
        """The cost table of the target or the draft."""
        return CostTable.from_json(self._stages[which]) if which in self._stages else None

    def keep_table(self, which: str, found: CostTable) -> None:
        self._keep(which, found.as_json())

    @property
    def exact_up_to(self) -> int | None:
        return self._stages.get("exact_up_to")

    def keep_exact(self, n: int) -> None:
        self._keep("exact_up_to", n)

    @property
    def overhead(self) -> Overhead | None:
        return Overhead(**self._stages["overhead"]) if "overhead" in self._stages else None

    def acceptance(self, temperature: float) -> Acceptance | None:
        """With its traces."""
        value = self._stages.get(f"acceptance {temperature:g}")
        if value is None:
            return None
        found = Acceptance.from_json(value)
        found.traces = [Trace.from_json(entry) for entry in value["traces"]]
        return found

    def keep_acceptance(self, found: Acceptance, overhead: Overhead) -> None:
        self._stages["overhead"] = asdict(overhead)
        self._keep(
            f"acceptance {found.temperature:g}", found.as_json() | {"traces": [t.as_json() for t in found.traces]}
        )


def forget(fingerprint: str) -> None:
    """The run is over, and its profile is saved."""
    _path(fingerprint).unlink(missing_ok=True)


def _path(fingerprint: str) -> Path:
    return folder() / "unfinished" / f"{fingerprint}.json"
