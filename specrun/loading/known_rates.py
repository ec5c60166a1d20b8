"""At how many bytes a second passes read on this machine, by what was measured last."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from specrun import kept_facts
from specrun.catalog.entries import Entry
from specrun.hardware.fit import Rates
from specrun.hardware.machine import surroundings
from specrun.llama import devices
from specrun.locations import cache_dir
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile, now

_BESIDE = "beside other programs"  # whether these held cores, in what a kept rate depends on
_BUSY = 0.5  # cores that other programs hold, from which on a thread of ours has none


def keep_rates(read: Mapping[str, float], is_busy: bool) -> None:
    """Keep at how many bytes a second passes have just read, by the names of the rates in `Rates`. is_busy: whether
    other programs held cores; such rates count where no others are known.
    """
    depend_on = _what_rates_depend_on()
    for name, rate in read.items():
        of = {**depend_on[name], _BESIDE: is_busy}
        kept_facts.remember("rates", of, {"created": now(), "bytes_per_second": rate})


def known_rates(catalog: Mapping[str, Entry]) -> Rates:
    """The rates that were measured last on this machine, and assumed ones for the rest: those that were kept, and those
    that profiles tell.

    A dense model of the catalog that lies in one memory tells the rate of that memory: its bytes over the time of a
    plain pass. The rate of the disk was measured when a profile was made.
    """
    sizes = {
        entry.file.rsplit("/", 1)[-1]: entry.expected_bytes
        for entry in catalog.values()
        if entry.kind == "dense" and entry.expected_bytes
    }
    told = [(p.other_load < _BUSY, p.created, _told_by(p, sizes)) for p in profile_files.saved()]
    for (name, of), is_busy in product(_what_rates_depend_on().items(), (False, True)):
        if kept := kept_facts.recall("rates", {**of, _BESIDE: is_busy}, _kept_rate):
            told.append((not is_busy, kept[0], {name: kept[1]}))
    found, is_quiet = dict[str, float](), dict[str, bool]()
    for quiet, _, rates in sorted(told, key=lambda one: one[:2]):  # those of a quiet machine count before all others
        found |= rates
        is_quiet |= dict.fromkeys(rates, quiet)
    return Rates(**found, measured=tuple(found), busy=tuple(name for name in found if not is_quiet[name]))


def _told_by(profile: Profile, sizes: Mapping[str, int]) -> dict[str, float]:
    """The rates that a profile tells, by their names in `Rates`. sizes: bytes of dense models, by their files."""
    found: dict[str, float] = {}
    n_bytes = sizes.get(profile.target)
    if n_bytes and (field := {"in VRAM": "vram", "in RAM": "ram"}.get(profile.regime)):
        found[field] = n_bytes / profile.costs.target.ms(1, 0) * 1e3
    storage = profile.hardware.get("storage")
    disk = storage.get("bytes_per_second") if isinstance(storage, dict) else None
    if isinstance(disk, (int, float)) and disk > 0:
        found["disk"] = float(disk)
    return found


def _what_rates_depend_on() -> dict[str, dict[str, Any]]:
    """What each rate at which passes read depends on, by its name in `Rates`, besides what other programs do. The disk
    is that of the cache folder.
    """
    here = surroundings(devices.this_machine())
    return {"ram": {"rate": "ram", **here}, "disk": {"rate": "disk", "folder": str(cache_dir()), **here}}


def _kept_rate(value: Any) -> tuple[str, float]:
    """When a rate was kept, and the rate."""
    return str(value["created"]), max(float(value["bytes_per_second"]), 1.0)
