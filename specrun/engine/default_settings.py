"""The settings of a target that nobody has tuned: llama.cpp's own, unless others keep the text bit-exact."""

from __future__ import annotations

from dataclasses import replace

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


def with_defaults(options: RunOptions) -> RunOptions:
    """The options, with weights re-ordered for this CPU where llama.cpp would and bit-exactness is not lost by it.

    Re-ordered weights are faster to compute with. Weights that are streamed from disk, or that a GPU may hold, stay as
    they are in the file.
    """
    if options.exact or options.settings.repack is not None:
        return options
    try:
        if set(GgufFile.read(options.target).types) <= _EXACT_TYPES:
            return options
        placement = place(placement_request(options, offload_devices(devices.devices())))
    except ModelFileError:
        return options  # loading the file says what is wrong with it
    if not placement.can_repack:
        return options
    return replace(options, settings=options.settings.over(LlamaSettings(repack=True)))
