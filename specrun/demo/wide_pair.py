"""The embedded pair, widened so that its passes cost what a real pair's do. Made once, and kept.

The target has 0.38 billion parameters in Q8_0, 409 MB, of which passes read 339 MB from disk with `MOST_RAM`: what does
not belong to a layer stays, and the layers take turns in two slots. A pass over a few tokens gives each of them the
same bits as a pass over one, so both texts are the same. The draft is a 17th of the target, as Qwen2.5 0.5B is of 7B,
and has its tokens, as llama.cpp's own tools want it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specrun.catalog import embedded
from specrun.catalog.gguf_file import file_identity
from specrun.display_text import size_text
from specrun.errors import SpecrunError, disk_errors
from specrun.interrupts import InterruptFlag
from specrun.locations import cache_dir
from specrun.long_run import Run
from specrun.making.widening import WiderModel

MOST_RAM = 300_000_000  # bytes for both models with their caches: room for no layer beside the slots
IN_RAM = 1_000_000_000  # bytes that are free where all weights stay in RAM, what is kept free for others included

_SPARE = 100_000_000  # bytes that stay free for metadata and for others


@dataclass(frozen=True)
class Widening:
    """How an embedded model is widened."""

    name: str
    source: Path
    sizes: Mapping[str, int]  # the sizes that change
    kind: str  # the type of the matrices

    @property
    def path(self) -> Path:
        """The file says by its name what it was made from, so that a new version of specrun makes its own."""
        sizes, made_from = "-".join(map(str, self.sizes.values())), file_identity([self.source])[:8]
        return folder() / f"{self.name}-{sizes}-{self.kind}-{made_from}.gguf"


_TARGET_SIZES = {"embd": 1024, "layers": 16, "ff": 5632, "heads": 32, "kv_heads": 8, "vocab": 32000}
WIDENINGS = (
    Widening("target", embedded.TARGET, _TARGET_SIZES, "q8_0"),
    Widening("draft", embedded.DRAFT, {"embd": 288, "vocab": 32000}, "q8_0"),
)


def folder() -> Path:
    """Where the widened pair is kept."""
    return cache_dir() / "demo"


def wide_pair(run: Run) -> tuple[Path, Path]:
    """The files of target and draft, made first if they are not here. Pairs of an older specrun are deleted.

    Raises SpecrunError where the disk has no room or cannot be written, and KeyboardInterrupt.
    """
    target, draft = paths = [widening.path for widening in WIDENINGS]
    missing = [widening for widening in WIDENINGS if not widening.path.exists()]
    if missing:
        with disk_errors("written; set SPECRUN_CACHE_DIR to a folder that can", folder()):
            with InterruptFlag() as interrupted:
                _make(missing, Run(run.display, run.note, interrupted))
            for old in folder().glob("*.gguf"):
                if old not in paths:
                    old.unlink()
    return target, draft


def remove() -> int:
    """Delete the pair. Returns the number of bytes that are free again. Raises SpecrunError if that is refused."""
    if not folder().exists():
        return 0
    with disk_errors("deleted; delete it by hand", folder()):
        freed = sum(path.stat().st_size for path in folder().iterdir())
        shutil.rmtree(folder())
    return freed


def _make(missing: list[Widening], run: Run) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    models = [(one.path, WiderModel(one.source, one.sizes, one.kind)) for one in missing]
    total = sum(model.n_bytes for _, model in models)
    free = shutil.disk_usage(folder()).free
    parameters = models[0][1].n_parameters / 1e9
    run.note(
        f"making a pair of {parameters:.2g} billion parameters in {folder()}: {size_text(total)}, "
        f"of {size_text(free)} that are free; `specrun demo --remove` deletes it"
    )
    if free < total + _SPARE:
        raise SpecrunError(
            f"{folder()} has {size_text(free)} free and the pair needs {size_text(total + _SPARE)}; make room, or set "
            "SPECRUN_CACHE_DIR to another disk"
        )
    started, done = time.perf_counter(), 0

    def progress(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        seconds = (time.perf_counter() - started) * (total - done) / done
        run.expected_to_take(seconds).show(f"writing the pair, {size_text(done)} of {size_text(total)}")

    for path, model in models:
        model.write(path, progress)
