"""What is expected of a pair's passes before any of them was timed, by where the weights lie."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.placing import gpus_of, placement_request
from specrun.engine.run_options import NEAR_BUDGET, RunOptions
from specrun.hardware.fit import expert_share
from specrun.hardware.placement import Placement, place
from specrun.llama import offload_threshold
from specrun.speculation.planning.pass_times import MOST_TOKENS, ExpertGrowth

_MOST_OF_RAM = 0.04  # share of the free RAM that rows of logits may take; chosen by hand
_ROW_COPIES, _FLOAT_BYTES = 4, 4


@dataclass(frozen=True)
class FirstGuesses:
    """What the places of the weights tell before a pass was made.

    experts: how passes grow with their tokens if the target is a mixture; None for a dense model. copies_from: tokens
    from which passes copy weights to a GPU; None where none does. largest: nodes of the largest trees that contexts
    have room for: many where passes wait for weights that are neither in VRAM nor in RAM alone, so that they may pay.
    """

    experts: ExpertGrowth | None = None
    copies_from: int | None = None
    largest: int = NEAR_BUDGET


def first_guesses(options: RunOptions) -> FirstGuesses:
    """The guesses for a pair that is not loaded yet, as its memory would be missing. Raises the errors of placement."""
    file = GgufFile.read(options.target)
    placement = place(placement_request(options.with_trees_of(NEAR_BUDGET), gpus_of(options)))
    experts = None
    if 0 < file.used_share < 1:
        experts = ExpertGrowth(file.n_experts, file.n_experts_used, expert_share(placement, file.used_share))
    largest = NEAR_BUDGET
    if placement.regime in ("partly in VRAM", "streamed"):
        # Rows of logits, of both models and in their buffers, take memory that weights need more.
        n_rows = int(_MOST_OF_RAM * placement.request.ram_bytes / (_ROW_COPIES * _FLOAT_BYTES * max(file.n_vocab, 1)))
        largest = min(max(n_rows, NEAR_BUDGET), MOST_TOKENS)
    return FirstGuesses(experts, _copies_from(options, placement), largest)


def _copies_from(options: RunOptions, placement: Placement) -> int | None:
    settings = options.settings.over(placement.settings)
    # Weights that are re-ordered for the CPU are not copied, and streamed ones neither.
    copies = placement.regime == "partly in VRAM" and settings.op_offload is not False and not settings.repack
    return offload_threshold.in_use() if copies else None
