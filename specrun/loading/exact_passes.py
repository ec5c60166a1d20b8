"""Which sizes the target's passes are padded to, so that a token's logits are the same bits in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specrun import kept_facts
from specrun.hardware.placement import Placement
from specrun.llama import TargetContext, offload_threshold, tiled_kernels
from specrun.llama.facts.relied_on import BOUNDARIES, why_not
from specrun.llama.invariance import exact_sizes
from specrun.llama_settings import TiledKernels
from specrun.loading.default_settings import keeps_bits
from specrun.loading.run_options import RunOptions, identity_of
from specrun.profiles.codec import converter
from specrun.profiles.profile import Profile
from specrun.speculation.method import Plan
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PLAIN_ONLY, PassSizes

_GPU_VERSION = 2  # of what is measured where a GPU holds layers; raise it when passes there are computed otherwise
_SMALL = PassSizes(1, 1, 63)  # tokens of passes that flash attention computes with its kernel for few
_NOTEWORTHY = 0.01  # share of a plain pass's time from which the cost of padding is mentioned


@dataclass(frozen=True)
class ExactPasses:
    """The class of sizes to which the target's passes are padded."""

    sizes: PassSizes = ANY_SIZE  # the class; ANY_SIZE where nothing is padded
    is_exact: bool = False  # whether passes of these sizes were measured to give a token the same bits
    cost: float = 0.0  # what padding adds to a plain pass, as a share of its time
    tiled: TiledKernels = "auto"  # which passes llama.cpp's tiled kernels compute

    def __str__(self) -> str:
        if not self.is_exact:
            return "exact up to near-ties, because the size of a pass may change the last bits of a token's logits"
        if self.sizes == ANY_SIZE:
            which = {"auto": None, "never": "none", "always": "all"}[self.tiled]
            why = f", because tiled kernels compute {which} of them" if which else ""
            return f"bit-exact in passes of every size{why}"
        if self.sizes == PLAIN_ONLY:
            return "bit-exact without speculation, as no larger pass keeps the last bits of a token's logits here"
        cost = f"; a plain pass takes {self.cost:.0%} longer" if self.cost >= _NOTEWORTHY else ""
        return f"bit-exact, because every pass has {self.sizes}{cost}"

    @property
    def notices(self) -> list[str]:
        """What a user who asked for exactness should know."""
        if self.sizes == PLAIN_ONLY:
            return ["--exact: speculation is off, because any larger pass changes a token's last bits here"]
        return [] if self.sizes == ANY_SIZE else [f"--exact: {self}"]


def of_one_cache(target: TargetContext) -> ExactPasses:
    """Passes of fewer than 64 tokens for latent attention, whose K and V are one tensor and so have one type.

    Where types differ, flash attention on the CPU has one kernel for all passes (docs/adr/0002). With one type it takes
    another kernel for 64 tokens and more. A target whose weights keep bits in all sizes is exact below that.
    """
    model, settings = target.context.model, target.context.config.settings
    has_kernels = not settings.gpu_layers and settings.flash_attn != "off"
    if model.allows_two_kv_types or not has_kernels or not keeps_bits(model.file):
        return ExactPasses()
    return ExactPasses(_SMALL)


def of_profile(profile: Profile) -> ExactPasses:
    """What `specrun tune` measured and chose."""
    is_exact, target = profile.pads or profile.exact_sizes == ANY_SIZE, profile.costs.target
    cost = target.ms(profile.padding.padded(1), target.times[0].ctx) / target.ms(1, target.times[0].ctx) - 1
    return ExactPasses(profile.padding, is_exact, cost, profile.settings.tiled or "auto")


def measured(
    target: TargetContext, plans: Sequence[Plan], options: RunOptions, placement: Placement | None = None
) -> ExactPasses:
    """What was measured on the target loaded with `options`, by an earlier run or now. Measuring empties the cache.

    The result is kept, because all runs must pad alike, and another measurement may choose another of several
    classes that are about equally fast.
    """
    # The environment may have chosen other kernels, or another threshold, than those of another run.
    identity = identity_of(replace(options, draft=None))
    if tiled_kernels.in_use() != "auto":
        identity["tiled"] = tiled_kernels.in_use()
    if offload_threshold.in_use() != offload_threshold.DEFAULT:
        identity["offload_min_batch"] = offload_threshold.in_use()
    if placement and placement.n_gpu_layers:
        identity["layers"] = [placement.layer_gpus, placement.n_cpu_moe]
        identity["gpu_version"] = _GPU_VERSION
    if known := kept_facts.recall("exact", identity, lambda value: converter().structure(value, ExactPasses)):
        return known
    settings = target.context.config.settings
    is_attention_known = settings.gpu_layers or settings.flash_attn == "off"
    if not is_attention_known and why_not(BOUNDARIES, settings):
        return ExactPasses(PLAIN_ONLY, True, tiled=tiled_kernels.in_use())
    sizes, survey = exact_sizes(target, range(1, 32), max(plan.budget for plan in plans))
    padded = min(size for size in survey.ms if size in sizes)
    result = ExactPasses(sizes, True, round(survey.ms[padded] / survey.ms[1] - 1, 4), tiled_kernels.in_use())
    kept_facts.remember("exact", identity, converter().unstructure(result))
    return result
