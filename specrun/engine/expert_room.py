"""Where not all experts of a mixture fit into memory: whether a draft model is worth the memory that it takes there."""

from __future__ import annotations

from dataclasses import replace

from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import drafting_head
from specrun.engine.placing import gpus_of, placement_request
from specrun.engine.run_options import RunOptions
from specrun.hardware.placement import place

LEFT_OUT = (
    "the draft model is not loaded, because experts that do not fit need its memory more; "
    "`specrun tune` measures whether drafting with it pays"
)
GAINS_NOTHING = "the draft model is not loaded, because it does not pay here (by the profile of this machine)"


def for_experts(options: RunOptions, temperature: float | None = None) -> tuple[RunOptions, str | None]:
    """What `auto` runs with: the options without their draft model, and a line that says so, or as they are and None.

    In a pass over several tokens a mixture reads the experts of all of them, so drafting pays least where experts are
    read from disk, and each expert that leaves memory for the draft model is read again and again. So one is loaded
    only if the profile follows a plan with it: at this temperature, or at any for None, where texts of several may
    come. Raises ModelFileError for a file that cannot be read.
    """
    file = GgufFile.read(options.target)
    drafts = options.with_profile.drafts and not (options.largest and options.largest.method.needs_draft)
    if not (options.draft and drafts and options.follow and 0 < file.used_share < 1):
        return options, None
    profile = options.profile
    if profile:
        asked = profile.plans if temperature is None else [profile.at(temperature)]
        if any(tuned.plan.method.needs_draft for tuned in asked):
            return options, None
    head = drafting_head(file, GgufFile.read(options.draft))
    is_own = head is not None and head.is_own  # its weights are the target's
    if is_own or place(placement_request(options, gpus_of(options))).regime != "streamed":
        return options, None
    plans = tuple(plan for plan in options.plans if not plan.method.needs_draft)
    alone = replace(options, draft=None, plans=plans, profile=profile.without_draft() if profile else None)
    return alone, GAINS_NOTHING if profile else LEFT_OUT
