"""Too little memory: for Python's libraries, for the weights, for the context, for a pass."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fault_tools.injecting import PROMPT, TARGET, Extent, Fault, Injections, Place
from specrun.making.widening import WiderModel

_MIB = 2**20
_SIZES = {"embd": 512, "layers": 12, "ff": 2048}  # of the model that does not fit: about 60 MB in F16
_OUT_OF_MEMORY = 6
_FAILED_IMPORT = 1
_OF_NUMPY = "OpenBLAS error: Memory allocation"  # numpy's library ends the process itself while it is imported


def model_file(folder: Path) -> Path:
    """A model that takes clearly more memory than specrun itself."""
    path = folder / "wide.gguf"
    if not path.exists():
        WiderModel(TARGET, _SIZES, "f16").write(path, lambda _: None)
    return path


def _limit(n_bytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def address_space(load_mode: str, place: Place, extent: Extent) -> Injections:
    """`ulimit -v` from far too little to plenty: with each limit it works, or ends in one line with exit code 6 (with 1
    where Python cannot even load its libraries).
    """
    command = ("generate", PROMPT, "--raw", "-n", "8", "-m", model_file(place.work), "-lm", load_mode, "-c", "4096")
    step = max(int(extent.every * 200), 10)
    for mib in range(100, 1200, step):
        run = place.run(*command, before=_limit(mib * _MIB))
        said = run.code == 0 or (run.stderr.splitlines() or [""])[-1].startswith(("specrun: ", _OF_NUMPY))
        lost = "" if said else f"with {mib} MiB: {run.stderr[-300:]}"
        yield run.injection({0, _OUT_OF_MEMORY, _FAILED_IMPORT}, lost=lost or place.leftovers())


def contexts(place: Place, _extent: Extent) -> Injections:
    """A context that no machine has room for."""
    for ctx_size in (2**24, 2**27, 2**29, 2**31 - 1):
        run = place.run("generate", PROMPT, "--raw", "-n", "8", "-c", ctx_size)
        yield run.injection({2, _OUT_OF_MEMORY}, lost=place.leftovers())


FAULTS = [
    *(Fault(f"too little memory, --load-mode {mode}", partial(address_space, mode)) for mode in ("mmap", "none")),
    Fault("a context that does not fit", contexts),
]
