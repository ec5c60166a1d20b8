"""Which models fit the memory that is free on this machine now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.display_text import size_text
from specrun.errors import ModelFileError
from specrun.hardware.fit import CELLS, Fit, Rates, fit
from specrun.hardware.machine import Device, offload_devices
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import ModelShape, expected_shape
from specrun.llama import devices
from specrun.llama_settings import UNDECIDED
from specrun.loading.known_rates import known_rates

IN_MEMORY = ("vram", "partly", "ram")  # the values of `Fit.fits` of a model that is not read from disk in every pass


def readable(path: Path) -> GgufFile | None:
    """What the headers of the model at `path` say; None if the file is damaged, of which `specrun models info` says
    more.
    """
    try:
        return GgufFile.read(path)
    except ModelFileError:
        return None


@dataclass(frozen=True)
class LocalFits:
    """The memory and the rates of a machine, to compare models with."""

    catalog: Mapping[str, Entry]
    gpus: tuple[Device, ...]
    ram_bytes: int  # free
    rates: Rates

    @classmethod
    def now(cls, catalog: Mapping[str, Entry]) -> LocalFits:
        """This machine, with what is free now."""
        gpus = offload_devices(devices.devices())
        return cls(catalog, gpus, Memory.read().available_bytes, known_rates(catalog))

    def of(self, entry: Entry | None, path: Path | None) -> Fit | None:
        """How a model fits, with its recommended draft; None if too little is known of it.

        path: its file, whose header tells more than the catalog; None if it is not on this machine.
        """
        file = readable(path) if path else None
        target, used_share = (ModelShape.of(file, CELLS, UNDECIDED), file.used_share) if file else (None, 1.0)
        if file is None and entry:
            target = expected_shape(entry, CELLS)
            if entry.shape and entry.shape.experts:
                used_share = entry.shape.experts_used / entry.shape.experts
        if target is None:
            return None
        return fit(target, self._draft_of(entry), self.gpus, self.ram_bytes, self.rates, used_share)

    def _draft_of(self, entry: Entry | None) -> ModelShape | None:
        if not entry or not entry.drafts:
            return None
        alias, _, quantization = entry.drafts[0].partition(":")
        draft = self.catalog.get(alias)
        if draft and quantization:
            draft = replace(draft, quantization=quantization, bytes=None)
        return expected_shape(draft, CELLS) if draft else None

    @property
    def explanation(self) -> str:
        """What `fits` and the rates are computed from, for people."""
        gpus = ", ".join(f"{size_text(gpu.free_bytes)} of {gpu.name}" for gpu in self.gpus)
        ram = f"{size_text(self.ram_bytes)} of RAM"
        memory = f"{gpus} and {ram} are" if gpus else f"{ram} is"
        text = f"fits: {memory} free. tokens/s: an estimate of plain decoding, by reading {self.rates_text}"
        learnable = {"RAM": "ram"} | ({"disk": "disk"} if sys.platform == "linux" else {})  # where weights are streamed
        missing = [name for name, rate in learnable.items() if rate not in self.rates.measured]
        return f"{text}; `specrun demo` measures {' and '.join(missing)}" if missing else text

    @property
    def rates_text(self) -> str:
        """The rates at which passes read, and which of them are assumed, for people."""
        named = [("VRAM", "vram", self.rates.vram)] if self.gpus else []
        named += [("RAM", "ram", self.rates.ram), ("disk", "disk", self.rates.disk)]
        said = dict.fromkeys(self.rates.measured, "measured")
        said |= dict.fromkeys(self.rates.busy, "measured while other programs held cores")
        return ", ".join(f"{size_text(rate)}/s from {name} ({said.get(key, 'assumed')})" for name, key, rate in named)
