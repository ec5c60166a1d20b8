"""Why what was measured before is not followed: the words for a profile of which something has changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrun.llama_settings import ALL_LAYERS
from specrun.profiles import profile_files

# What a user calls the parts of an identity.
_NAMES = {
    "memory": "RAM", "driver": "GPU driver", "devices": "GPUs",
    "libraries": "llama.cpp's libraries",
}  # fmt: skip
# The options whose settings have other names, and the settings that have an option of their own for the draft.
_OPTIONS = {"type_k": "cache_type_k", "type_v": "cache_type_v", "op_offload": "no_op_offload"}
_OF_DRAFT = ("gpu_layers", "type_k", "type_v")


def why_outdated(identity: Mapping[str, Any], with_learned: bool = False) -> str | None:
    """A line about the newest tuned profile of the same files, which something has changed since, and the command that
    measures again; None without one.

    with_learned: whether it is about what runs have learned, if no profile was tuned.
    """
    for profile in sorted(profile_files.saved(with_learned), key=lambda profile: profile.origin != "tuned"):
        is_same = profile.identity["files"] == identity["files"]
        if is_same and (changed := changed_parts(profile.identity, identity)):
            before, now = (parts.get("context") for parts in (profile.identity, identity))
            size = f" --ctx-size {now}" if now != before else ""
            tune = f"`specrun tune{size}` with the same models and options"
            if profile.origin == "tuned":
                is_alone = profile.identity == {**identity, "context": before}
                or_else = f", and --ctx-size {before} uses that profile" if is_alone else ""
                return f"this pair was tuned before, but {changed} changed since; {tune} measures again{or_else}"
            return f"runs have learned this pair, but {changed} differed (`specrun tune --list`); {tune} measures it"
    return None


def changed_parts(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The parts of an identity that are not as they were, as a user calls them, and the options with both values."""
    changed: list[str] = []
    for part, value in now.items():
        if before.get(part) == value:
            continue
        if part == "settings":
            changed += _changed_options(_by_option(before.get(part, {})), _by_option(value)) or ["options"]
        elif part == "context":
            changed += _changed_options({"--ctx-size": before.get(part)}, {"--ctx-size": value})
        else:
            changed.append(_NAMES.get(part, part))
    return ", ".join(changed)


def _by_option(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the user had decided, by the names of the options."""
    found = {f"--{name}": value for name, value in settings.items() if value and name not in ("target", "draft")}
    for of in ("draft", "target"):  # where both have a setting of one option, it is the target's
        for name, value in settings.get(of, {}).items():
            ending = "_draft" if of == "draft" and name in _OF_DRAFT else ""
            found[f"--{_OPTIONS.get(name, name)}{ending}".replace("_", "-")] = value
    return found


def _changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The options that differ; those with a value with both."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(map(str, value))
        return "not given" if value is None else "all" if value == ALL_LAYERS else str(value)

    changed = []
    for option in {**before, **now}:
        values = before.get(option), now.get(option)
        if values[0] != values[1]:
            is_flag = any(isinstance(value, bool) for value in values)
            changed.append(option if is_flag else f"{option} ({shown(values[0])}, now {shown(values[1])})")
    return changed
