"""Rates of this machine, by its profiles and by what passes read last."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.entries import catalog
from specrun.hardware.fit import Rates
from specrun.loading.known_rates import keep_rates, known_rates
from specrun.profiles import profile_files
from tests.profiles.test_profile import made

ENTRY = catalog()["qwen-14b"]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRUN_DATA_DIR", str(tmp_path / "data"))


def test_without_profiles_all_are_assumed() -> None:
    assert known_rates(catalog()) == Rates()


def test_a_dense_model_in_one_memory_tells_its_rate() -> None:
    profile = made("a", target=ENTRY.file, regime="in RAM", hardware={"storage": {"bytes_per_second": 3e9}})
    profile_files.save(profile)
    profile_files.save(made("b", target="unknown.gguf", regime="in VRAM"))
    profile_files.save(made("c", target=catalog()["gpt-oss-20b"].file, regime="in VRAM"))
    rates = known_rates(catalog())
    assert rates.ram == pytest.approx((ENTRY.bytes or 0) / (profile.costs.target.ms(1, 0) / 1e3))
    assert rates.disk == 3e9
    assert rates.vram == Rates().vram, "of a mixture a token reads a part, and of an unknown file nothing is known"
    assert set(rates.measured) == {"ram", "disk"}


def test_what_passes_read_last_counts() -> None:
    hardware = {"storage": {"bytes_per_second": 3e9}}
    profile_files.save(made("a", created="2026-01-01T00:00:00+00:00", hardware=hardware))
    keep_rates({"disk": 1e9}, is_busy=False)
    keep_rates({"disk": 4e8, "ram": 2e9}, is_busy=True)
    rates = known_rates(catalog())
    assert (rates.disk, rates.ram, rates.busy) == (1e9, 2e9, ("ram",)), "where no other is known"
    keep_rates({"ram": 5e9}, is_busy=False)
    rates = known_rates(catalog())
    assert (rates.disk, rates.ram, set(rates.measured), rates.busy) == (1e9, 5e9, {"disk", "ram"}, ())
    profile_files.save(made("b", created="9999-01-01T00:00:00+00:00", hardware=hardware))
    rates = known_rates(catalog())
    assert (rates.disk, rates.ram) == (3e9, 5e9)


def test_each_rate_is_as_old_as_its_own_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrun.loading.known_rates.now", lambda: "2026-01-01T00:00:00+00:00")
    keep_rates({"ram": 1e9}, is_busy=False)
    later = made("a", created="2026-02-01T00:00:00+00:00", target=ENTRY.file, regime="in RAM")
    profile_files.save(later)
    monkeypatch.setattr("specrun.loading.known_rates.now", lambda: "2026-03-01T00:00:00+00:00")
    keep_rates({"disk": 4e8}, is_busy=False)
    rates = known_rates(catalog())
    assert rates.ram == pytest.approx((ENTRY.bytes or 0) / (later.costs.target.ms(1, 0) / 1e3))
    assert rates.disk == 4e8


def test_a_profile_of_a_busy_machine_counts_where_no_other_rate_is_known() -> None:
    busy = {"created": "9999-01-01T00:00:00+00:00", "hardware": {"storage": {"bytes_per_second": 3e9}}}
    profile_files.save(made("a", other_load=1.0, **busy))
    rates = known_rates(catalog())
    assert (rates.disk, rates.measured, rates.busy) == (3e9, ("disk",), ("disk",))
    keep_rates({"disk": 1e9}, is_busy=False)
    rates = known_rates(catalog())
    assert (rates.disk, rates.measured, rates.busy) == (1e9, ("disk",), ())


def test_kept_rates_are_those_of_this_machine_and_of_this_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_rates({"disk": 1e9, "ram": 5e9}, is_busy=False)
    assert set(known_rates(catalog()).measured) == {"ram", "disk"}
    with monkeypatch.context() as patch:
        patch.setenv("SPECRUN_CACHE_DIR", str(tmp_path / "another disk"))
        assert known_rates(catalog()).measured == ("ram",)
    monkeypatch.setattr("specrun.loading.known_rates.surroundings", lambda _: {"machine": "another"})
    assert known_rates(catalog()) == Rates()
