"""Grammars of calls as Qwen's coders write them: a tag for each argument, around JSON, or around a text as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specrun.constraints import counted, lengths, pointed_at, property_rules
from specrun.constraints.formats import FORMATS
from specrun.constraints.keywords import restricting

_MOST_FOLLOWED = 16  # references and alternatives in each other
# The name of a parameter that the schema does not name.
_ANY_NAME = "[^<>\\n]{1,64}"
# Text up to </parameter>. It may not have "</p" in it: a grammar would have to count letters to allow the rest.
_TEXT = {"text": '([^<] | "<" [^/] | "</" [^p])*'}
_HELD = {"type", "properties", "required", "additionalProperties"}  # of the arguments together
_HELD_TEXT = {"type", "enum", "const", "minLength", "maxLength"}


def not_held(schema: Mapping[str, Any]) -> str | None:
    """What such a call cannot be held to of a schema of arguments, which a grammar of JSON can express; None if all."""
    required, properties = schema.get("required", []), schema.get("properties") or {}
    if others := restricting(schema) - _HELD:
        return min(others)
    if missing := set(required) - properties.keys():
        return f"{min(missing)}, which is required and not in properties"
    if not properties and schema.get("additionalProperties", False) not in (True, False, {}):
        return "the schema of additionalProperties"
    for name, argument in properties.items():
        if not isinstance(argument, dict):
            if argument is not True:
                return f"properties.{name}"
        elif argument.get("type") == "string":
            form = argument.get("format")
            others = restricting(argument) - _HELD_TEXT
            if others or (isinstance(form, str) and form in FORMATS):
                return f"{min(others, default='format')} of the string {name}"
    return None


def coder_parameters(schema: Mapping[str, Any], prefix: str, rules: dict[str, str], is_strict: bool) -> Iterable[str]:
    """GBNF expressions for the parameters in the order of the schema; for any, where it names none.

    is_strict: whether what may be something else than a text is JSON, so that it is held to its schema.
    """
    rules.update(_TEXT)
    required, properties = schema.get("required", []), schema.get("properties")
    if not properties:
        others = schema.get("additionalProperties", properties is None)
        if others is not False:
            yield f'("<parameter=" {_ANY_NAME} ">\\n" text "\\n</parameter>\\n")*'
        return
    for i, (name, argument) in enumerate(properties.items()):
        value = _text(argument) if isinstance(argument, dict) else "text"
        usual = None if is_strict else "string"
        is_named = isinstance(argument, dict) and argument.get("type", usual) != "string"
        if is_named or not _may_be_text(argument, schema):
            value, more = property_rules(schema, name, f"{prefix}{i}-")
            rules.update(more)
        parameter = f'{plain_literal(f"<parameter={name}>")} "\\n" {value} "\\n</parameter>\\n"'
        yield parameter if name in required else f"({parameter})?"


def _may_be_text(argument: Any, schema: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether an argument may be a text, which stands there without quotes."""
    if not isinstance(argument, dict) or depth > _MOST_FOLLOWED:
        return True
    if isinstance(argument.get("$ref"), str):
        return _may_be_text(pointed_at(schema, argument["$ref"]), schema, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(argument.get(key), list):
            return any(_may_be_text(part, schema, depth + 1) for part in argument[key])
    values = argument.get("enum", [argument["const"]] if "const" in argument else None)
    kinds = argument.get("type", "string")
    return any(isinstance(value, str) for value in values) if isinstance(values, list) else "string" in kinds


def _text(argument: Mapping[str, Any]) -> str:
    """A GBNF expression for a text that stands without quotes."""
    choices = argument.get("enum", [argument["const"]] if "const" in argument else None)
    if isinstance(choices, list):
        choices = [choice for choice in choices if isinstance(choice, str) and argument.get("const", choice) == choice]
        return f"({' | '.join(map(plain_literal, choices))})" if choices else "text"
    if "minLength" in argument or "maxLength" in argument:
        return counted("[^<]", *lengths(argument, "#"))
    return "text"


def plain_literal(text: str) -> str:
    """The text as it is, as a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
