"""A benchmark as one row and a footnote that strangers can compare (docs/community.md). Nothing in it is private."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import specrun
from specrun.bench.row_plans import OFF_ROW, BenchSettings
from specrun.bench.rows import Row
from specrun.catalog.gguf_file import GgufFile
from specrun.engine.model import Model
from specrun.hardware.machine import Machine
from specrun.llama import devices, library

HEAD = (
    *("machine", "card", "model", "quantization", "layers in VRAM"),
    *("plain, tokens/s", "best, tokens/s", "ratio", "tokens a pass"),
)
_DIGITS = 10  # of a commit's hash
_GIT_SECONDS = 5  # after which a slow disk is not worth waiting for


@dataclass(frozen=True)
class Shared:
    """What one method did on all kinds of text together."""

    method: str
    plan: str
    tokens_per_second: float
    tokens_per_pass: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Shared:
        """One method from its rows, one for each kind of text. Kinds count by their tokens."""
        tokens = sum(row.tokens for row in rows)
        return cls(
            method=rows[0].method,
            plan=rows[0].plan if len({row.plan for row in rows}) == 1 else rows[0].method,
            tokens_per_second=tokens / sum(row.tokens / row.tokens_per_second for row in rows),
            tokens_per_pass=tokens / sum(row.tokens / row.tokens_per_pass for row in rows),
        )


def cells_and_footnote(rows: Sequence[Row], model: Model, settings: BenchSettings) -> tuple[list[str], str]:
    """A cell for each column of `HEAD`, and what else decides these figures."""
    methods = dict.fromkeys(row.method for row in rows)
    shared = [Shared.of([row for row in rows if row.method == method]) for method in methods]
    plain = next(one for one in shared if one.method == OFF_ROW)
    best = max(shared, key=lambda one: one.tokens_per_second)
    return _cells(plain, best, model), _footnote(rows, best, model, settings)


def _cells(plain: Shared, best: Shared, model: Model) -> list[str]:
    here = Machine.read(None, devices.devices(), devices.system_info())
    target = GgufFile.read(model.llama_model.path)
    gpus = model.placement.request.gpus if model.placement else ()
    cards = ", ".join(
        f"{'RPC server' if gpu.is_remote else gpu.description}, {gpu.total_bytes / 2**30:.0f} GiB" for gpu in gpus
    )
    n_in_vram = model.placement.n_gpu_layers if model.placement else 0
    return [
        f"{here.cpu.name}, {here.cpu.n_usable} cores, {here.memory.total_bytes / 2**30:.0f} GiB",
        cards or "none",
        model.llama_model.name,
        target.quantization,
        f"{n_in_vram} of {target.n_layers + 1}",
        f"{plain.tokens_per_second:.2f}",
        f"{best.tokens_per_second:.2f}",
        f"{best.tokens_per_second / plain.tokens_per_second:.2f}",
        f"{best.tokens_per_pass:.2f}",
    ]


def _footnote(rows: Sequence[Row], best: Shared, model: Model, settings: BenchSettings) -> str:
    temperature = f"T={settings.sampling.temperature:g}" if settings.sampling.temperature else "greedy"
    kinds = ", ".join(dict.fromkeys(row.kind for row in rows))
    profile = "tuned" if model.plans.profile else "not tuned"
    draft = model.engine.draft
    parts = [
        f"specrun {revision()}, llama.cpp {library.build()} ({', '.join(library.backends())})",
        f"best: {best.method}, {best.plan}, {profile}",
        f"draft: {draft.context.model.name if draft else 'none'}",
        f"weights: {model.residency}",
        f"{temperature}, {settings.max_tokens} tokens an answer, {settings.repetitions} repetitions, texts: {kinds}",
    ]
    return "; ".join(parts)


def revision() -> str:
    """The version, and in parentheses the commit; `changed` where files differ from it."""
    commit = _installed_commit() or _checkout_commit(Path(specrun.__file__).parents[1])
    return f"{specrun.__version__} ({commit})" if commit else specrun.__version__


def _installed_commit() -> str | None:
    """The commit that pip installed from a git address, or None."""
    try:
        origin = metadata.distribution("specrun").read_text("direct_url.json")
        return str(json.loads(origin or "{}")["vcs_info"]["commit_id"])[:_DIGITS]
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return None


def _checkout_commit(root: Path) -> str | None:
    """The commit of the clone that this package lies in, or None."""
    if not (root / ".git").exists():
        return None
    mark = ("--always", "--exclude=*", f"--abbrev={_DIGITS}", "--dirty=, changed")
    command = ["git", "-C", str(root), "describe", *mark]
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", check=True, timeout=_GIT_SECONDS
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
