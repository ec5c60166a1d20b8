"""How fast this machine reads weights, as far as profiles of `specrun tune` tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specrun.catalog.entries import Entry
from specrun.hardware.fit import Rates
from specrun.profiles import profile_files

_FIELDS: dict[str, Literal["vram", "ram"]] = {"in VRAM": "vram", "in RAM": "ram"}


def known_rates(catalog: Mapping[str, Entry]) -> Rates:
    """The rates that the newest profiles of this machine tell, and assumed ones for the rest.

    A dense model of the catalog that lies in one memory tells the rate of that memory: its bytes over the time of a
    plain pass. The rate of the disk was measured when a profile was made.
    """
    sizes = {
        entry.file.rsplit("/", 1)[-1]: entry.expected_bytes
        for entry in catalog.values()
        if entry.kind == "dense" and entry.expected_bytes
    }
    found: dict[str, float] = {}
    for profile in profile_files.saved():
        field, n_bytes = _FIELDS.get(profile.regime), sizes.get(profile.target)
        if field and n_bytes:
            found.setdefault(field, n_bytes / profile.costs.plain_ms(0) * 1e3)
        if disk := _disk_rate(profile.hardware):
            found.setdefault("disk", disk)
    return Rates(**found, measured=tuple(found))


def _disk_rate(hardware: Mapping[str, Any]) -> float | None:
    storage = hardware.get("storage")
    rate = storage.get("bytes_per_second") if isinstance(storage, dict) else None
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None
