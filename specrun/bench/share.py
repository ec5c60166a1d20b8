"""A benchmark as one row and a footnote that strangers can compare (docs/community.md). Nothing in it is private."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specrun.bench import revision
from specrun.bench.rows import Row
from specrun.bench.settings import OFF_ROW, BenchSettings
from specrun.catalog.gguf_file import GgufFile
from specrun.engine.model import Model
from specrun.hardware.machine import Machine
from specrun.llama import devices, library

HEAD = (
    "machine",
    "card",
    "model",
    "quantization",
    "layers in VRAM",
    "plain, tokens/s",
    "best, tokens/s",
    "ratio",
    "tokens a pass",
)


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


def cells(rows: Sequence[Row], model: Model) -> list[str]:
    """The row, one cell for each column of `HEAD`."""
    plain, best = _plain_and_best(rows)
    here = Machine.read(None, devices.devices(), devices.system_info())
    target = GgufFile.read(model.llama_model.path)
    gibibytes = here.memory.total_bytes / 2**30
    gpus = model.placement.request.gpus if model.placement else ()
    cards = ", ".join(
        f"{'RPC server' if gpu.is_remote else gpu.description}, {gpu.total_bytes / 2**30:.0f} GiB" for gpu in gpus
    )
    n_in_vram = model.placement.n_gpu_layers if model.placement else 0
    return [
        f"{here.cpu.name}, {here.cpu.n_usable} cores, {gibibytes:.0f} GiB",
        cards or "none",
        model.llama_model.name,
        target.quantization,
        f"{n_in_vram} of {target.n_layers + 1}",
        f"{plain.tokens_per_second:.2f}",
        f"{best.tokens_per_second:.2f}",
        f"{best.tokens_per_second / plain.tokens_per_second:.2f}",
        f"{best.tokens_per_pass:.2f}",
    ]


def footnote(rows: Sequence[Row], model: Model, settings: BenchSettings) -> str:
    """What else decides these figures, in a sentence for each."""
    _, best = _plain_and_best(rows)
    sampling = settings.sampling
    temperature = f"T={sampling.temperature:g}" if sampling.temperature else "greedy"
    kinds = ", ".join(dict.fromkeys(row.kind for row in rows))
    profile = "tuned" if model.plans.profile else "not tuned"
    draft = model.engine.draft
    parts = [
        f"specrun {revision.text()}, llama.cpp {library.build()} ({', '.join(library.backends())})",
        f"best: {best.method}, {best.plan}, {profile}",
        f"draft: {draft.context.model.name if draft else 'none'}",
        f"weights: {model.residency}",
        f"{temperature}, {settings.max_tokens} tokens an answer, {settings.repetitions} repetitions, texts: {kinds}",
    ]
    return "; ".join(parts)


def _plain_and_best(rows: Sequence[Row]) -> tuple[Shared, Shared]:
    by_method = [Shared.of(list(_of(rows, method))) for method in dict.fromkeys(row.method for row in rows)]
    plain = next(shared for shared in by_method if shared.method == OFF_ROW)
    return plain, max(by_method, key=lambda shared: shared.tokens_per_second)


def _of(rows: Iterable[Row], method: str) -> Iterable[Row]:
    return (row for row in rows if row.method == method)
