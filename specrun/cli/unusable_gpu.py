"""A GPU that is in this machine and that llama.cpp cannot use: said once, with what mends it."""

from __future__ import annotations

from specrun.cli import output
from specrun.doctor import installation
from specrun.doctor.finding import Finding
from specrun.hardware.device import offload_devices
from specrun.hardware.machine import gpu_driver, nvidia_card
from specrun.llama import devices, library
from specrun.locations import data_dir, recall, remember


def finding() -> Finding | None:
    """What is wrong; None if no GPU is known to be there, or if it can be used."""
    n_gpus = len(offload_devices(devices.devices()))
    return installation.unusable_gpu(library.backends(), n_gpus, gpu_driver(), nvidia_card())


def say_once() -> None:
    """A note about it, unless an earlier run has said the same. To be called when models are loaded."""
    found = finding()
    if found is None:
        return
    path = data_dir() / "unusable-gpu.json"
    if recall(path, str) == found.detail:
        return
    remember(path, found.detail)
    output.note(f"{found.detail}; {found.fix}")
