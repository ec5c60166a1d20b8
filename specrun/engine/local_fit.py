"""Which models fit the memory that is free on this machine now."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.display_text import size_text
from specrun.errors import ModelFileError
from specrun.hardware.device import Device, offload_devices
from specrun.hardware.fit import CELLS, Fit, Rates, fit
from specrun.hardware.memory import Memory
from specrun.hardware.model_shape import ModelShape, expected_shape
from specrun.llama import devices
from specrun.llama_settings import UNDECIDED
from specrun.profiles.lookup import known_rates


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
        target, n_experts, n_used = None, 0, 0
        with suppress(ModelFileError):  # `specrun models info` says what is wrong with it
            if path:
                file = GgufFile.read(path)
                target, n_experts, n_used = ModelShape.of(file, CELLS, UNDECIDED), file.n_experts, file.n_experts_used
        if target is None and entry:
            target = expected_shape(entry, CELLS)
            if entry.shape:
                n_experts, n_used = entry.shape.experts, entry.shape.experts_used
        if target is None:
            return None
        used_share = n_used / n_experts if n_experts else 1.0
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
        named = [("VRAM", "vram", self.rates.vram)] if gpus else []
        named += [("RAM", "ram", self.rates.ram), ("the disk", "disk", self.rates.disk)]
        measured = self.rates.measured
        rates = ", ".join(
            f"{size_text(rate)}/s from {name} ({'measured by `specrun tune`' if key in measured else 'assumed'})"
            for name, key, rate in named
        )
        return f"fits: {memory} free. tokens/s: an estimate of plain decoding, by reading {rates}"
