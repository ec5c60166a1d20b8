"""What the experts of a mixture are expected to cost where it lies."""

from __future__ import annotations

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.placing import gpus_of, placement_request
from specrun.engine.run_options import RunOptions
from specrun.hardware.fit import expert_share
from specrun.hardware.placement import place
from specrun.speculation.planning.expert_growth import ExpertGrowth


def expert_growth(options: RunOptions) -> ExpertGrowth | None:
    """How the passes of a mixture grow with their tokens; None for a model that is none.

    Raises ModelFileError for a file that cannot be read.
    """
    file = GgufFile.read(options.target)
    if not 0 < file.n_experts_used < file.n_experts:
        return None
    placement = place(placement_request(options, gpus_of(options)))
    share = expert_share(placement, file.n_experts_used / file.n_experts)
    return ExpertGrowth(file.n_experts, file.n_experts_used, share)
