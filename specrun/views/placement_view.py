"""Where the layers of target and draft lie, as text with a line for each device."""

from __future__ import annotations

from specrun.display_text import size_text
from specrun.hardware.placement import PartName, Placement, Site

_LETTERS: dict[PartName, str] = {"draft": "d", "target": "t", "experts": "e", "KV cache": "k", "compute": "c"}
_WIDTH = 32  # characters of a bar


def picture(placement: Placement) -> str:
    """For each device a bar and the size of its parts, and below where the target's layers lie."""
    sites = (*placement.gpus, placement.ram)
    used = [f"{size_text(site.used_bytes)} of {size_text(site.free_bytes)}" for site in sites]
    names_width, used_width = max(len(site.name) for site in sites), max(map(len, used))
    lines = []
    for site, size in zip(sites, used, strict=True):
        parts = ", ".join(f"{name} {size_text(site.parts[name])}" for name in _LETTERS if name in site.parts)
        lines.append(f"{site.name:<{names_width}} {bar(site)} {size:<{used_width}} {parts}".rstrip())
    where, regime = _target(placement), placement.regime
    return "\n".join([*lines, where if where.endswith(regime) else f"{where}, {regime}"])


def layers(placement: Placement) -> str:
    """A sentence that says where the target's layers lie, and the draft."""
    return f"{_target(placement)}{'; draft in VRAM' if placement.draft_in_vram else ''}"


def _target(placement: Placement) -> str:
    n_layers = len(placement.layer_gpus) - 1
    if not placement.n_gpu_layers:
        return f"target: all {n_layers} layers in RAM"
    in_vram = min(placement.n_gpu_layers, n_layers + 1) - 1
    text = f"target: {in_vram} of {n_layers} layers and the output in VRAM"
    if placement.request.target.is_moe and placement.n_cpu_moe:
        text += f", experts of {placement.n_cpu_moe} layers in RAM"
    if hosts := [site.description for site in placement.gpus if site.is_remote and site.parts]:
        text += f" or on {', '.join(hosts)}"
    return text


def bar(site: Site) -> str:
    """How full a device is. Each part gets a letter at least; what does not fit is cut off."""
    text = ""
    for name, letter in _LETTERS.items():
        share = site.parts.get(name, 0) / max(site.free_bytes, 1)
        text += letter * min(max(round(share * _WIDTH), 1 if share else 0), _WIDTH - len(text))
    return text.ljust(_WIDTH, ".")
