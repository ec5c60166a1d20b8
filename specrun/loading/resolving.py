"""Resolving option groups into run options: model files, plans, and the profile of this pair on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specrun import kept_facts
from specrun.catalog import embedded, here
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import check_tokenizer
from specrun.catalog.resolve import NO_DRAFT, OWN_HEAD, Fetcher, local_pair
from specrun.decoding import prompt_tokens, tree_shapes
from specrun.errors import UsageError
from specrun.hardware.machine import surroundings
from specrun.kept_facts import KeptFact
from specrun.llama import devices, library, named_template, offload_threshold
from specrun.loading.run_options import RunOptions, context_length
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.profiles import profile_files
from specrun.profiles.profile import Profile
from specrun.speculation.method import Plan


def run_options(
    models: ModelOptions,
    speculation: SpeculationOptions,
    machine: MachineOptions,
    fetcher: Fetcher,
    note: Callable[[str], None],
) -> RunOptions:
    """What the options ask for, before any profile. `note` is called with a sentence about the draft that was chosen.

    Raises UsageError for impossible options, MissingModelError or HubError for models that cannot be downloaded, and
    ModelFileError for files that are no models, or have no tokenizer.
    """
    if models.target is None and models.draft not in (None, NO_DRAFT, *embedded.DRAFTS):
        raise UsageError("--draft needs a target to draft for; give it with --target")
    plans = speculation.plans()
    settings, draft_settings = machine.target_settings(), machine.draft_settings()
    drafting = any(plan.drafts and plan.method.needs_draft for plan in plans)
    draft_name = models.draft or _wanted_head(models.target, plans)
    target, draft = local_pair(models.target, draft_name, drafting, fetcher, note)
    for path in filter(None, (target, draft)):
        check_tokenizer(GgufFile.read(path))
    return RunOptions(
        target=target,
        draft=draft,
        plans=plans,
        ctx_size=machine.ctx_size,
        settings=settings,
        draft_settings=draft_settings,
        exact=machine.exact,
        residency=machine.residency,
        may_shrink=speculation.is_auto,
        chat_template=prompt_tokens.given_template(models.chat_template)
        if models.chat_template
        else _template_of_ollama(models.target, target, note),
    )


def _template_of_ollama(name: str | None, target: Path, note: Callable[[str], None]) -> str | None:
    """The name of llama.cpp's template that does what Ollama's does, for a model of Ollama's whose file has none."""
    model = here.ollama_behind(name, target)
    if not model or not model.template or GgufFile.read(target).chat_template:
        return None
    if found := named_template.recognized(model.template):
        note(f"chat template: llama.cpp's {found}, whose format Ollama's template of {name} has")
    return found


def _wanted_head(target: str | None, plans: Sequence[Plan]) -> str | None:
    """The name of the head that a method asks for, where it comes with the target."""
    wanted = next((plan.method.head for plan in plans if plan.method.head), None)
    if wanted == "mtp":
        return OWN_HEAD
    return wanted if embedded.is_meant(target) and wanted in embedded.DRAFTS else None


def identity_of(options: RunOptions) -> dict[str, Any]:
    """All that a profile for these options depends on, by part, as JSON values: files, what the user has decided, this
    machine and this build of llama.cpp. Raises ModelFileError for a file that cannot be read.
    """
    return {**_subject(options), **surroundings(devices.this_machine(options.settings.rpc))}


def _subject(options: RunOptions) -> dict[str, Any]:
    target = GgufFile.read(options.target)
    both = {"target": options.settings, "draft": options.draft_settings}
    decided = {name: {key: v for key, v in asdict(given).items() if v is not None} for name, given in both.items()}
    # Where weights do not fit into RAM, all times depend on how they are read.
    how = {} if options.residency == "auto" else {"residency": options.residency}
    return {
        "files": [target.identity, GgufFile.read(options.draft).identity if options.draft else None],
        "context": context_length(options.ctx_size, target.n_ctx_train),
        "settings": json.loads(json.dumps({**decided, "exact": options.exact, **how})),
    }


def _offload_min_batch(options: RunOptions) -> int | None:
    """The threshold of offloading that the profile for these options was measured with; None for llama.cpp's own.

    It has to be known before llama.cpp looks for devices, which are a part of a profile's identity; so everything else
    is compared. Without a draft, profiles with any draft count.
    """
    wanted = {**_subject(options), **library.identity()}
    files = [file for file in wanted.pop("files") if file]
    found: dict[str, int] = {}
    for kept in kept_facts.every("profiles"):
        if isinstance(kept, KeptFact) and kept.of["files"][: len(files)] == files and wanted.items() <= kept.of.items():
            found[kept.value["created"]] = kept.value["settings"].get("offload_min_batch")
    return found[max(found)] if found else None


def with_profile(
    options: RunOptions, speculation: SpeculationOptions, temperature: float, note: Callable[[str], None]
) -> RunOptions:
    """The options with the profile of this pair on this machine, if it exists.

    The profile's settings are always used, because the text may depend on them; its plans are used only with `auto`.
    `note` is called with a notice about an outdated profile. Raises UsageError for a method that needs a profile.
    """
    options = replace(options, follow=speculation.is_auto)
    are_saved = profile_files.are_saved()
    if options.draft is None and not are_saved:
        return options
    if are_saved and offload_threshold.is_open():
        offload_threshold.settle(_offload_min_batch(options))
    identity = identity_of(options)
    if options.draft is None:
        # The newest profile of the target with any draft, so that a text is the same without a draft.
        profile = profile_files.of_target(identity)
        return replace(options, profile=profile.without_draft() if profile else None)
    saved = profile_files.find(identity, note)
    counts = saved is None and are_saved and (speculation.is_auto or speculation.method)
    if counts and (why := profile_files.why_outdated(identity)):
        note(why)
    if speculation.method:
        plan = _with_size(options.plans[0], saved, speculation, temperature)
        options = replace(options, plans=(plan,))
    return replace(options, profile=saved)


def _with_size(plan: Plan, profile: Profile | None, speculation: SpeculationOptions, temperature: float) -> Plan:
    if profile:
        return tree_shapes.by_profile(plan, profile, temperature, speculation.is_open)
    if plan.method.is_adaptive:
        raise UsageError(f"--method {speculation.method} needs a profile of this pair; run `specrun tune` first")
    return plan
