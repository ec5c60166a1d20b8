"""At how many bytes a second passes read on this machine, by what was measured last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrun import kept_facts
from specrun.catalog.entries import Entry
from specrun.hardware.fit import Rates
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile, now


def keep_rates(read: Mapping[str, float], is_busy: bool) -> None:
    """Keep at how many bytes a second passes have just read, by the names of the rates in `Rates`. is_busy: whether
    other programs held cores; such rates count where no others are known.
    """
    of = _of_passes(is_busy)
    _, before = kept_facts.recall("rates", of, _kept_rates) or ("", {})
    kept_facts.remember("rates", of, {"created": now(), "bytes_per_second": {**before, **read}})


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
    told = [(profile.created, _told_by(profile, sizes)) for profile in profile_files.saved()]
    kept, busy = (kept_facts.recall("rates", _of_passes(is_busy), _kept_rates) or ("", {}) for is_busy in (False, True))
    found: dict[str, float] = {}
    for _, rates in sorted([*told, kept], key=lambda one: one[0]):
        found |= rates
    only_busy = {name: rate for name, rate in busy[1].items() if name not in found}
    return Rates(**found, **only_busy, measured=(*found, *only_busy), busy=tuple(only_busy))


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


def _of_passes(is_busy: bool) -> dict[str, Any]:
    """What the rates at which passes read depend on."""
    return {"read by": "passes", "beside other programs": is_busy}


def _kept_rates(value: Any) -> tuple[str, dict[str, float]]:
    """When rates were kept, and the rates by their names in `Rates`."""
    rates = value["bytes_per_second"]
    return str(value["created"]), {name: max(float(rates[name]), 1.0) for name in ("ram", "disk") if name in rates}
