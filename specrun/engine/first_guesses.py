"""What is expected of a pair's passes before any of them was timed, by where the weights lie."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.placing import gpus_of, placement_request
from specrun.engine.run_options import RunOptions
from specrun.hardware.fit import draft_share, expert_share
from specrun.hardware.placement import Placement, place
from specrun.llama import offload_threshold
from specrun.speculation.planning.pass_times import ExpertGrowth


@dataclass(frozen=True)
class FirstGuesses:
    """How passes of the target grow with their tokens if it is a mixture, and what a draft pass takes.

    experts: None for a dense model. copies_from: tokens from which passes of the target copy weights to a GPU; None
        where none does. draft_share: the time of a draft pass over one token as a share of a plain pass, as
        both read all weights that they use from where these lie; 0 without a draft.
    """

    experts: ExpertGrowth | None = None
    draft_share: float = 0.0
    copies_from: int | None = None


def first_guesses(options: RunOptions) -> FirstGuesses:
    """The guesses for a pair that is not loaded yet, as its memory would be missing. Raises the errors of placement."""
    file = GgufFile.read(options.target)
    placement = place(placement_request(options, gpus_of(options)))
    experts = None
    if 0 < file.used_share < 1:
        experts = ExpertGrowth(file.n_experts, file.n_experts_used, expert_share(placement, file.used_share))
    return FirstGuesses(experts, draft_share(placement, file.used_share), _copies_from(options, placement))


def _copies_from(options: RunOptions, placement: Placement) -> int | None:
    settings = options.settings.over(placement.settings)
    # Weights that are re-ordered for the CPU are not copied, and streamed ones neither.
    copies = placement.regime == "partly in VRAM" and settings.op_offload is not False and not settings.repack
    return offload_threshold.in_use() if copies else None
