"""What models that people run would do on this machine, by what the demonstration's passes took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile
from specrun.demo.comparison import Comparison
from specrun.display_text import size_text
from specrun.engine.local_fit import LocalFits
from specrun.hardware.fit import Fits

ASKED = ("qwen3-14b", "qwen3-32b", "llama-70b")  # dense, in Q4_K_M: the sizes that people ask for
# What a pass brought with a draft that is right as often as those of real families (docs/benchmarks/headline.md, a
# chain of 6, greedy). The embedded pair's draft is right more often.
_TOKENS_PER_PASS = 3.9
_PARTLY_IN_VRAM = 2.0  # times plain decoding with half of a 7B in VRAM (docs/gpu.md), which the demonstration lacks


@dataclass(frozen=True)
class Expected:
    """A model on this machine. Rates are in tokens per second, and estimates; 0 where it does not fit.

    fast: with a draft.
    """

    name: str
    n_bytes: int
    fits: Fits
    plain: float
    fast: float


@dataclass(frozen=True)
class Outlook:
    """The models of `ASKED` on this machine."""

    here: LocalFits
    gains: Mapping[Fits, float]  # times plain decoding's rate that drafts bring, by where the weights lie

    @classmethod
    def by(cls, in_ram: Comparison, streamed: Comparison | None, target: Path, catalog: Mapping[str, Entry]) -> Outlook:
        """From the texts that were written in RAM, and from those whose weights were streamed, if there are any.

        target: the file of the model that wrote them.
        """
        file = GgufFile.read(target)
        here, gains = LocalFits.now(catalog), _gains(in_ram, streamed)
        # A token looks up one row of the embedding.
        ram = (target.stat().st_size - file.embedding_bytes) * in_ram.plain.statistics.tokens_per_second
        s = streamed.plain.statistics if streamed else None
        rates = replace(here.rates, ram=ram, disk=s.bytes_read / s.seconds if s else here.rates.disk)
        return cls(replace(here, rates=rates), gains)

    def expected(self) -> list[Expected]:
        """What to expect of each model."""
        found = []
        for name in ASKED:
            entry = self.here.catalog[name]
            if fit := self.here.of(entry, None):
                # Where drafts bring nothing, specrun decodes plainly.
                fast = fit.tokens_per_second * max(self.gains.get(fit.fits, 1.0), 1.0)
                found.append(Expected(name, entry.expected_bytes or 0, fit.fits, fit.tokens_per_second, fast))
        return found

    def __str__(self) -> str:
        rates, gpus = self.here.rates, "".join(f"{gpu.name} and " for gpu in self.here.gpus)
        disk = f" and {size_text(rates.disk)}/s from disk" if "streamed" in self.gains else ""
        return (
            f"On this machine, estimated with {gpus}{size_text(self.here.ram_bytes)} of free RAM, as passes just read "
            f"{size_text(rates.ram)}/s from it{disk}, and with a draft that is right as often as those of real "
            f"families ({_TOKENS_PER_PASS:g} tokens a pass):"
        )


def _gains(in_ram: Comparison, streamed: Comparison | None) -> dict[Fits, float]:
    gains: dict[Fits, float] = {"ram": _TOKENS_PER_PASS / in_ram.pass_cost, "partly": _PARTLY_IN_VRAM}
    return gains | ({"streamed": _TOKENS_PER_PASS / streamed.pass_cost} if streamed else {})
