"""`specrun tune` from options to a profile: settings chosen, models loaded, everything measured."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from rich.console import Console

from specrun.bench.bench_prompts import BenchPrompt
from specrun.engine import calibration_texts as texts
from specrun.engine.model import Model
from specrun.engine.placing import placement_request
from specrun.engine.prompt_tokens import chat_template, single_turn_tokens
from specrun.engine.run_options import RunOptions
from specrun.hardware import machine
from specrun.hardware.machine import Machine
from specrun.hardware.placement import Placement, place
from specrun.llama import devices
from specrun.llama_settings import LlamaSettings
from specrun.profiles.profile import Profile
from specrun.speculation.method import OFF
from specrun.tuning import settings_trials as settings
from specrun.tuning.effort import BUDGETS, Effort, largest_plan
from specrun.tuning.partial import Partial
from specrun.tuning.result import predictions_json
from specrun.tuning.tuner import Tuner
from specrun.views.placement_view import PlacementView

GB = 1e9
SETTINGS_SHARE = 0.3  # of the seconds of the other stages


def tune(
    options: RunOptions,
    identity: Mapping[str, Any],
    effort: Effort,
    temperatures: Sequence[float],
    own: Sequence[BenchPrompt] | None,
    raw: bool,
    progress: Callable[[str], None],
    notice: Callable[[str], None],
    interrupted: Callable[[], bool] = lambda: False,
) -> Profile:
    """Measure a pair and make its profile, which is not saved yet. Raises KeyboardInterrupt, between two passes, once
    `interrupted`.

    identity: what the profile depends on. own: the user's own prompts, continued as they are with `raw`. `notice`
    is told what differs from what was asked for.
    """
    fingerprint = machine.fingerprint(identity)
    key = f"{effort} {list(temperatures)} {[text.text for text in own] if own else ''} {raw}"
    partial = Partial(fingerprint, key)
    progress = _counting_down(progress, (1 + SETTINGS_SHARE) * BUDGETS[effort].seconds, interrupted)
    progress("looking at this machine")
    here = Machine.read(options.target, devices.devices(), devices.system_info())
    options = replace(options, plans=(OFF.plan(), largest_plan(effort)))
    placement = place(placement_request(options, here.gpus))
    chosen, tried = _settings(options, here, placement, effort, partial, progress)
    settled = replace(options, settings=options.settings.over(chosen), exact=False)
    with Model(settled) as model:
        for text in model.notices:
            notice(text)
        if partial.is_resumed:
            notice("going on with what an earlier run has measured")
        tuner = Tuner(model, effort, temperatures, partial, progress, interrupted, options.exact)
        template = None if raw else chat_template(model.llama_model)
        prompts = [(t.kind, single_turn_tokens(model.llama_model, t.text, template)) for t in own] if own else None
        result = tuner.run(prompts)
    return Profile(
        fingerprint=fingerprint,
        identity=dict(identity),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        target=options.target.name,
        draft=options.draft.name if options.draft and result.costs.draft else "",
        hardware={"summary": _summary(here), **here.as_json()},
        settings=chosen,
        regime=placement.regime,
        picture=_drawn(placement),
        exact_up_to=result.exact_up_to,
        costs=result.costs,
        acceptance=result.acceptance,
        plans=result.plans,
        validation=[validated.as_json() for validated in result.validated],
        predictions=predictions_json(result),
        tried=tried,
        notices=result.notices,
    )


def _counting_down(
    progress: Callable[[str], None], seconds: float, interrupted: Callable[[], bool]
) -> Callable[[str], None]:
    """Adds the time that is left, about, of a run that takes `seconds`; raises KeyboardInterrupt once interrupted."""
    end = time.perf_counter() + seconds

    def show(text: str) -> None:
        if interrupted():
            raise KeyboardInterrupt
        left = end - time.perf_counter()
        progress(f"{text} · about {left:.0f} s left" if left > 1 else f"{text} · nearly done")

    return show


def _drawn(placement: Placement) -> str:
    """Where the layers are, as plain text."""
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as capture:
        console.print(PlacementView(placement))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _settings(
    options: RunOptions,
    here: Machine,
    placement: Placement,
    effort: Effort,
    partial: Partial,
    progress: Callable[[str], None],
) -> tuple[LlamaSettings, list[dict[str, Any]]]:
    """llama.cpp's settings for the target, and what was tried."""
    if known := partial.settings():
        return known
    end = time.perf_counter() + SETTINGS_SHARE * BUDGETS[effort].seconds
    threads = options.settings.threads or here.cpu.n_usable
    shares = placement.regime == "partly in VRAM"
    chosen, tried = settings.choose(
        options,
        list(settings.variations(here.cpu.n_logical, threads, placement.can_repack, shares, options.exact)),
        lambda model: model.llama_model.tokenize(texts.together(), add_special=False),
        options.exact,
        lambda: time.perf_counter() > end,
        progress,
    )  # fmt: skip
    entries = [found.as_json() for found in tried]
    partial.keep_settings(chosen, entries)
    return chosen, entries


def _summary(here: Machine) -> dict[str, str]:
    """The machine in a few lines."""
    summary = {
        "cpu": f"{here.cpu.name}, {here.cpu.n_physical} cores, {here.cpu.n_usable} used",
        "memory": f"{here.memory.total_bytes / GB:.1f} GB, {here.memory.available_bytes / GB:.1f} GB available",
    }
    for i, device in enumerate(here.gpus):
        free, total = device.free_bytes / GB, device.total_bytes / GB
        summary[f"gpu {i}"] = f"{device.description}, {total:.1f} GB, {free:.1f} GB free"
    if here.storage and here.storage.bytes_per_second:
        summary["storage"] = f"{here.storage.device}, reads {here.storage.bytes_per_second / GB:.2f} GB/s"
    return summary
