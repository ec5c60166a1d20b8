"""The settings of a target that nobody has tuned: llama.cpp's own, unless others keep the text bit-exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.placing import placement_request
from specrun.engine.run_options import RunOptions
from specrun.errors import ModelFileError
from specrun.hardware.device import offload_devices
from specrun.hardware.placement import place
from specrun.llama import devices
from specrun.llama_settings import LlamaSettings

# Weight types whose CPU kernels give a token the same bits in passes of every size, as long as they are not re-ordered
# (docs/exactness.md).
_EXACT_TYPES = {"F32", "Q8_0"}


def keeps_bits(target: Path) -> bool:
    """Whether the CPU's kernels for all weights of a model give a token the same bits in passes of every size.

    Raises ModelFileError for a file that cannot be read.
    """
    return set(GgufFile.read(target).types) <= _EXACT_TYPES


def with_defaults(options: RunOptions) -> RunOptions:
    """The options, with llama.cpp's own settings where bit-exactness is not lost by them.

    V is cached in f16, as K is: llama.cpp then reads a prompt several times as fast behind a long context. Weights that
    lie in RAM are re-ordered for this CPU, which makes passes over a few tokens faster. Weights that are streamed from
    disk, or that a GPU may hold, stay as they are in the file.
    """
    if options.exact:
        return options
    try:
        if keeps_bits(options.target):
            return options
        placement = place(placement_request(options, offload_devices(devices.devices())))
    except ModelFileError:
        return options  # loading the file says what is wrong with it
    defaults = LlamaSettings(type_v=None if options.settings.type_k else "f16")
    if placement.can_repack:
        defaults = replace(defaults, repack=True)
    return replace(options, settings=options.settings.over(defaults))
