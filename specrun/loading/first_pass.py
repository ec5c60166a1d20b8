"""The first passes of a model on devices that it was never computed on, made in a process of their own.

A driver may crash in a kernel that no other program has used (docs/adr/0023-a-first-pass-in-a-process-of-its-own.md).
If the process runs out of memory, fewer layers are put into VRAM; if it crashes, others of llama.cpp's settings are
tried in turn. Later runs begin with the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from specrun import kept_facts
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.errors import CrashError, LlamaError, OutOfMemoryError
from specrun.hardware.machine import surroundings
from specrun.hardware.placement import MAX_STEPS_DOWN
from specrun.llama import devices
from specrun.llama_settings import FLOAT_CACHE_TYPES, UNDECIDED, LlamaSettings
from specrun.loading.placing import Here, LoadPlan, plan_load
from specrun.loading.run_options import RunOptions
from specrun.processes import child_process
from specrun.profiles.codec import converter
from specrun.sampling import SamplingParameters
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.tree import TokenTree

# What may crash, and the settings that do without it.
_WAYS = {
    "": UNDECIDED,
    "flash attention": LlamaSettings(flash_attn="off"),
    "weights that are copied to the GPU in large passes": LlamaSettings(op_offload=False),
    "layers on a GPU": LlamaSettings(gpu_layers=0),
}
_SIZES = (1, 2, 4, 8, 16, 32, 64)  # tokens of the passes that are made
_BEFORE = (20, 600)  # tokens before them: llama.cpp has other kernels of attention for long contexts
_DRAFTED = 4  # tokens of a chain that the draft drafts
# Settings whose other values take the same kernels, so that one trial is enough for all.
_ALIKE = {"threads", "threads_batch", "batch_size", "ubatch_size", "gpu_layers", "tensor_split", "n_cpu_moe"}
_TEXT = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True)
class FirstPassResult:
    """What the first passes have shown."""

    without: str  # what crashed; empty for nothing
    why: str  # how the process ended
    steps_down: int = 0  # smaller placements that were tried before passes had enough memory
    lacked: str = ""  # llama.cpp's words about that


def checked(plan: LoadPlan, show: Callable[[str], None]) -> tuple[LoadPlan, list[str]]:
    """The plan, without what crashes with this model on these devices, with as much less in VRAM as passes need,
    and notices about both.

    Raises CrashError if everything crashes that the user's decisions allow, OutOfMemoryError if they allow no placement
    with enough memory, and the errors of `plan_load`.
    """
    options, placement = plan.options, plan.placement
    if options.profile or not placement.vram_bytes:
        return plan, []
    decided = [
        {name: value for name, value in asdict(settings).items() if value is not None and name not in _ALIKE}
        for settings in (options.settings, options.draft_settings)
    ]
    of = {
        **surroundings(devices.this_machine(options.settings.rpc)),
        "files": [file.identity for file in (plan.here.target, options.draft and plan.here.draft) if file],
        "settings": decided,
        "where": [placement.regime, placement.draft_in_vram],
    }
    recalled = kept_facts.recall(
        "first-passes", of, lambda value: FirstPassResult(**value) if value["without"] in _WAYS else None
    )
    known = recalled or _tried(plan, show)
    if known is None:
        return plan, []
    smaller = placement
    if known.steps_down:
        smaller = plan_load(replace(options, steps_down=known.steps_down), plan.here).placement
    if not recalled and smaller.vram_bytes:  # another program may hold all VRAM just now, which is not remembered
        kept_facts.remember("first-passes", of, asdict(known))
    path = kept_facts.path_of("first-passes", of)
    again = f"; delete {path} to try again" if path.exists() else ""
    notices = []
    if known.without:
        crash = f"llama.cpp or the GPU's driver crashed with {known.without} ({known.why})"
        notices.append(f"{crash}, so this model runs without{again}")
    if known.steps_down:
        notices.append(f"{known.lacked} in a first pass, so VRAM now holds {smaller.layers_text}{again}")
    if not notices:
        return plan, []
    options = _without(replace(options, steps_down=known.steps_down), _WAYS[known.without])
    return plan_load(options, plan.here), notices


def _tried(plan: LoadPlan, show: Callable[[str], None]) -> FirstPassResult | None:
    """What crashes, and for how much there is memory; None if the pair cannot be loaded, which loading it explains."""
    why, options = "", plan.options
    for name, change in _WAYS.items():
        if not _is_open(options, change):
            continue
        show("trying this model for the first time on this GPU" + (f", without {name}" if name else ""))
        try:
            return FirstPassResult(name, why, *_stepped_down(_without(options, change), plan.here, show))
        except CrashError as error:
            why = why or str(error)
        except OutOfMemoryError:
            if not why:
                raise
        except LlamaError:
            if not name:
                return None
    raise CrashError(f"llama.cpp or the GPU's driver crashes with this model: {why}; update the driver, or give -ngl 0")


def _stepped_down(options: RunOptions, here: Here, show: Callable[[str], None]) -> tuple[int, str]:
    """How many smaller placements it takes until passes have enough memory, and what was said of the last that had not.

    Raises OutOfMemoryError if no placement has enough, and the other errors of `_run_apart`. A smaller one without
    VRAM is taken untried.
    """
    lacked = ""
    for n in range(MAX_STEPS_DOWN + 1):
        smaller = replace(options, steps_down=n)
        placement = plan_load(smaller, here).placement
        if n and not placement.vram_bytes:
            break
        try:
            _run_apart(smaller)
            break
        except OutOfMemoryError as error:
            if n == MAX_STEPS_DOWN or placement.step_down() is None:
                raise
            lacked = str(error).partition(";")[0]
            show("trying this model again, with less in VRAM")
    return n, lacked


def _is_open(options: RunOptions, change: LlamaSettings) -> bool:
    """Whether the user has not decided otherwise."""
    settings, draft = options.settings, options.draft_settings
    if change.flash_attn and not {settings.type_v or "f16", draft.type_v or "f16"} <= set(FLOAT_CACHE_TYPES):
        return False
    return all(change.over(given) == given.over(change) for given in (settings, draft))


def _without(options: RunOptions, change: LlamaSettings) -> RunOptions:
    return replace(options, settings=options.settings.over(change), draft_settings=options.draft_settings.over(change))


def _run_apart(options: RunOptions) -> None:
    """Load the pair in a process of its own and run passes.

    Raises CrashError if that ends it, OutOfMemoryError if passes lack memory, or LlamaError if it cannot be loaded.
    """
    request = converter().unstructure(options)
    debug = logging.getLogger("specrun.llama").isEnabledFor(logging.DEBUG)
    child_process.answer(__name__, request, "the first pass", lambda: None, debug)


def serve(request: str) -> None:
    """In the child: run the pair of the options in `request`, and print an object as JSON, with `error` if it fails."""

    def run(given: dict[str, Any]) -> dict[str, Any]:
        _run(converter().structure(given, RunOptions))
        return {}

    child_process.reply(request, run, failures=Exception)  # whatever Python raises is no crash of a driver


def _run(options: RunOptions) -> None:
    from specrun.loading.model import Model

    try:
        model = Model(options)
    except OutOfMemoryError as error:  # loading has stepped down by itself, and would do it again
        raise LlamaError(str(error)) from error
    with model:
        target, most = model.engine.target, max(_SIZES)
        text = model.llama_model.tokenize(_TEXT, add_special=False)
        for before in _BEFORE:
            n = max(min(before, model.engine.ctx_size - most - _DRAFTED), 2)
            tokens = (text * (n + most))[: n + most]
            target.set_prompt(tokens[:n])
            for size in _SIZES:
                if size <= target.room():
                    target.score(TokenTree.chain(tokens[n - 1 : n - 1 + size]))
                    target.drop_tree()
        if model.engine.draft:
            plan = FixedPlan(CHAIN.plan(depth=_DRAFTED))
            request = Request(tokens[:n], SamplingParameters(temperature=0.0), max_tokens=2 * _DRAFTED)
            for _ in write_alone(Generation(model.engine, request, plan)):
                pass
