"""What fits this machine: by the file if it is here, else by the catalog, with the recommended draft."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.catalog.entries import Entry, catalog
from specrun.hardware.fit import Rates
from specrun.loading.local_fit import LocalFits
from tests.hardware.test_placement import GB, gpu

CATALOG = catalog()
FITS = LocalFits(CATALOG, (gpu(12 * GB),), 32 * GB, Rates())


def test_by_the_catalog_with_the_recommended_draft() -> None:
    entry = CATALOG["qwen-14b"]
    found, alone = FITS.of(entry, None), FITS.of(replace(entry, drafts=()), None)
    assert found
    assert alone
    assert found.fits == alone.fits == "vram"
    assert found.placement.draft_in_vram
    assert not alone.placement.draft_in_vram
    assert FITS.of(CATALOG["qwen-72b"], None).fits in ("partly", "streamed")  # type: ignore[union-attr]
    made = FITS.of(replace(entry, drafts=("qwen-14b:q2_k",)), None)
    assert made
    assert made.placement.vram_bytes > found.placement.vram_bytes, "the same model with fewer bits is a large draft"


def test_by_the_file_if_it_is_here(tmp_path: Path) -> None:
    found = FITS.of(CATALOG["qwen-72b"], embedded.TARGET)
    assert found
    assert found.fits == "vram"
    damaged = tmp_path / "x.gguf"
    damaged.write_bytes(b"GGUF")
    assert FITS.of(None, damaged) is None
    by_catalog = FITS.of(CATALOG["qwen-14b"], damaged)
    assert by_catalog
    assert by_catalog.fits == "vram"


def test_a_model_of_which_nothing_is_known() -> None:
    assert FITS.of(Entry("mine", "me/mine", "mine-Q8_0.gguf", "Q8_0"), None) is None


def test_the_explanation_says_what_was_measured() -> None:
    text = replace(FITS, rates=Rates(disk=3e9, measured=("disk",))).explanation
    assert "12.00 GB of CUDA0 and 32.00 GB of RAM are free" in text
    assert text.endswith("3.00 GB/s from disk (measured); `specrun demo` measures RAM")
    assert "from VRAM (assumed)" in text
    assert "VRAM" not in replace(FITS, gpus=()).explanation
    assert LocalFits.now(CATALOG).ram_bytes > 0


def test_what_the_demonstration_can_measure_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert FITS.explanation.endswith("`specrun demo` measures RAM and disk")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert FITS.explanation.endswith("`specrun demo` measures RAM")
    assert "demo" not in replace(FITS, rates=Rates(measured=("ram",))).explanation
