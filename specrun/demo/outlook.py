"""What models that people run would do on this machine, by what the demonstration's passes took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    def by(cls, texts: Sequence[Comparison], target: Path, catalog: Mapping[str, Entry]) -> Outlook:
        """From texts that were written in RAM, and from those whose weights were streamed, where there are such.

        target: the file of the model that wrote them.
        """
        here, file = LocalFits.now(catalog), GgufFile.read(target)
        rates = here.rates
        gains: dict[Fits, float] = {"partly": _PARTLY_IN_VRAM}
        for comparison in texts:
            s = comparison.plain.statistics
            if comparison.is_streamed:
                rates = replace(rates, disk=s.bytes_read / s.seconds)
            else:  # a token looks up one row of the embedding
                rates = replace(rates, ram=(target.stat().st_size - file.embedding_bytes) * s.tokens_per_second)
            gains["streamed" if comparison.is_streamed else "ram"] = _TOKENS_PER_PASS / comparison.pass_cost
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
        gpus = "".join(f"{gpu.name} and " for gpu in self.here.gpus)
        rates: dict[Fits, str] = {
            "ram": f"{size_text(self.here.rates.ram)}/s from RAM",
            "streamed": f"{size_text(self.here.rates.disk)}/s from disk",
        }
        read = " and ".join(rate for place, rate in rates.items() if place in self.gains)
        return (
            f"On this machine, estimated with {gpus}{size_text(self.here.ram_bytes)} of free RAM, as passes just read "
            f"{read}, and with a draft that is right as often as those of real families ({_TOKENS_PER_PASS:g} tokens "
            "a pass):"
        )
