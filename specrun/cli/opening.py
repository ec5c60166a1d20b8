"""Loads the models of a command, and tells the user what they should know before the first text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specrun import kept_facts
from specrun.cli.pulling import AskingFetcher
from specrun.doctor import Finding, installation
from specrun.engine.model import Model
from specrun.engine.opening import open_model
from specrun.hardware.machine import gpu_driver, nvidia_card, offload_devices
from specrun.llama import devices, library
from specrun.locations import names_file
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output


def opened(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    temperature: float,
    is_chat: bool = False,
    note: Callable[[str], None] = output.note,
    **further: Any,
) -> Model:
    """What `open_model` gives, with questions and progress on stderr. is_chat: whether prompts are messages, which take
    a chat template. note: told what the user may want to know. further: the other arguments of `open_model`.
    """
    if _is_own_draft(models):
        output.hint(
            f"{models.target} is its own draft, which cannot be faster; name a smaller --draft, or --draft none"
        )
    asked = models, speculation, machine, temperature, AskingFetcher(models.pull), note
    model = open_model(*asked, progress=output.progress, **further)
    for notice in model.notices:
        note(notice)
    if is_chat and model.llama_model.chat_template is None:
        output.note("the model has no chat template, so ChatML is used; --chat-template names another")
    if _is_news("busy cores", bool(model.threads_notice)) and model.threads_notice:
        output.note(model.threads_notice)
    note_unusable_gpu()
    return model


def _is_own_draft(models: ModelOptions) -> bool:
    target, draft = models.target, models.draft
    if not target or not draft:
        return False
    return target == draft or (names_file(target) and names_file(draft) and Path(target).samefile(draft))


def unusable_gpu() -> Finding | None:
    """Why llama.cpp cannot use the GPU of this machine; None if no GPU is known to be there, or if it can be used."""
    driver, has_nvidia = gpu_driver(), nvidia_card()
    if offload_devices(devices.devices()) or not (driver or has_nvidia):
        return None
    return installation.backends(library.backends(), 0, driver, has_nvidia)


def note_unusable_gpu() -> None:
    """Tell the user about a GPU that cannot be used, unless an earlier run has said the same."""
    found = unusable_gpu()
    if found and _is_news("unusable GPU", found.detail):
        output.note(f"{found.detail}; {found.fix}")


def _is_news(what: str, state: str | bool) -> bool:
    """Whether this state differs from that of the run before, which is kept."""
    of = {"what": what}
    before = kept_facts.recall("said", of, type(state)) or type(state)()
    if before != state:
        kept_facts.remember("said", of, state)
    return before != state
