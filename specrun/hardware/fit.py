"""Whether a model fits a machine, and roughly how fast it would write there, before its file is here.

Placement decides where the weights would lie, as it does when they are loaded. The time of a token is then taken to be
that of reading the weights that it uses once, from wherever they lie: on all machines that specrun is for, passes over
one token wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specrun.hardware.machine import Device
from specrun.hardware.model_shape import ModelShape, PlacementRequest
from specrun.hardware.placement import Placement, place
from specrun.hardware.residency import plan_residency, room_for_weights

Fits = Literal["vram", "partly", "ram", "streamed", "no"]

# What a run with default options needs: a context of 4,096 tokens with room for a tree of 128, passes over the prompt
# of 512 tokens, and logits of the largest tree.
CELLS = 4096 + 128 + 64
_TOKENS = 512
_ROWS = 128

_REGIMES: dict[str, Fits] = {"in VRAM": "vram", "partly in VRAM": "partly", "in RAM": "ram", "streamed": "streamed"}


@dataclass(frozen=True)
class Rates:
    """Bytes a second that passes read. The defaults are assumed: what passes reach of the data sheets of a mid-range
    card, of two channels of DDR5 and of a PCIe SSD. measured: names of the rates that were measured on this machine.
    """

    vram: float = 240e9
    ram: float = 35e9
    disk: float = 2e9
    measured: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """How a model lies on a machine."""

    fits: Fits
    tokens_per_second: float  # estimated, of plain decoding; 0 where it does not fit
    placement: Placement


def fit(
    target: ModelShape,
    draft: ModelShape | None,
    gpus: Sequence[Device],
    ram_bytes: int,
    rates: Rates,
    used_share: float = 1.0,
) -> Fit:
    """Place a model and its draft with default options. used_share: of a layer's experts, which a token uses."""
    placement = place(PlacementRequest(target, draft, tuple(gpus), ram_bytes, _TOKENS, _ROWS))
    room = room_for_weights(placement)
    fits = _REGIMES[placement.regime]
    if fits == "streamed" and not _can_stream(placement, room):
        return Fit("no", 0.0, placement)
    return Fit(fits, 1 / _seconds(placement, room, rates, used_share), placement)


def expert_share(placement: Placement, used_share: float) -> float:
    """The share of a token's time in which experts are read, with assumed rates. used_share: as in `fit`."""
    room = room_for_weights(placement)
    return 1 - _seconds(placement, room, Rates(), 0.0) / _seconds(placement, room, Rates(), used_share)


def _can_stream(placement: Placement, room: int) -> bool:
    """Whether what every pass needs in RAM at once fits there.

    For a mixture these are the weights that every token uses; else two layers, and the weights outside the layers.
    """
    target, in_ram = placement.request.target, placement.ram.parts.get("target", 0)
    if target.is_moe:
        return in_ram <= room
    layers = target.layers[: placement.layer_gpus[:-1].count(None)]
    return plan_residency(layers, in_ram - sum(layers), room) is not None


def _seconds(placement: Placement, room: int, rates: Rates, used_share: float) -> float:
    """Seconds to read what one token uses."""
    target = placement.request.target
    on_gpus = 0.0
    for gpu, site in zip(placement.request.gpus, placement.gpus, strict=True):
        used = site.parts.get("target", 0) + used_share * site.parts.get("experts", 0)
        on_gpus += used / (rates.ram if gpu.shares_ram else rates.vram)
    dense, experts = placement.ram.parts.get("target", 0), placement.ram.parts.get("experts", 0)
    from_disk = 0.0
    if placement.regime == "streamed":
        read = used_share * max(experts - max(room - dense, 0), 0)
        from_disk = read if target.is_moe else max(dense - room, 0)
    # A token looks up one row of the embedding, unless the output matrix is the same and lies in RAM.
    rows = target.embedding if placement.layer_gpus[-1] is not None or not target.is_tied else 0
    from_ram = max(dense - rows, 0) + used_share * experts - from_disk
    return on_gpus + max(from_ram, 0.0) / rates.ram + from_disk / rates.disk
