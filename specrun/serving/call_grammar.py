"""Grammars of calls of tools, in the way that a model writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specrun.constraints import grammar_text, json_literal, schema_rules
from specrun.serving.reading import hermes
from specrun.serving.reading.form import CallStyle
from specrun.serving.tools import Tools

_ARGUMENTS = {"hermes": "arguments", "llama3": "parameters"}
# Text up to </parameter>. It may not have "</p" in it: a grammar would have to count letters to allow the rest.
_TEXT = {"text": '([^<] | "<" [^/] | "</" [^p])*'}


def call_grammar(style: CallStyle, tools: Tools, is_begun: bool = False) -> str:
    """The grammar of an answer that consists of calls. is_begun: behind the first <tool_call>; not for Llama's way."""
    names = tools.forced or tuple(tools.schemas)
    rules: dict[str, str] = {}
    one = " | ".join(_call(style, name, tools.schemas[name], f"t{i}-", rules) for i, name in enumerate(names))
    rules["call"] = one
    if style == "llama3":
        return grammar_text('call (";" ws call)*' if tools.is_parallel else "call", rules)
    rules["rest"] = f'ws call ws "{hermes.CLOSE}"'
    more = f' (ws "{hermes.OPEN}" rest)*' if tools.is_parallel else ""
    return grammar_text(("" if is_begun else f'"{hermes.OPEN}" ') + "rest" + more, rules)


def arguments_grammar(schema: Any) -> str:
    """The grammar of an answer that is only a call's arguments."""
    name, rules = schema_rules(schema)
    return grammar_text(name, rules)


def _call(style: CallStyle, name: str, schema: Any, prefix: str, rules: dict[str, str]) -> str:
    """A GBNF expression for a call; the rules that it needs are added to `rules`."""
    if style == "coder":
        return f'"<function={name}>\\n" {" ".join(_parameters(schema, prefix, rules))} "</function>"'
    arguments, more = schema_rules(schema, prefix)
    rules.update(more)
    head = f'"{{" ws "\\"name\\":" ws {json_literal(name)} "," ws "\\"{_ARGUMENTS[style]}\\":" ws'
    return f'{head} {arguments} ws "}}"'


def _parameters(schema: Mapping[str, Any], prefix: str, rules: dict[str, str]) -> Iterable[str]:
    """GBNF expressions for the parameters in the order of the schema."""
    rules.update(_TEXT)
    required = schema.get("required", [])
    for i, (name, argument) in enumerate(schema.get("properties", {}).items()):
        value = _text(argument) if isinstance(argument, dict) else "text"
        if isinstance(argument, dict) and argument.get("type") not in (None, "string"):
            value, more = schema_rules(_within(argument, schema), f"{prefix}{i}-")
            rules.update(more)
        one = f'{_literal(f"<parameter={name}>")} "\\n" {value} "\\n</parameter>\\n"'
        yield one if name in required else f"({one})?"


def _text(argument: Mapping[str, Any]) -> str:
    """A GBNF expression for a text that stands without quotes."""
    choices = argument.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return f"({' | '.join(map(_literal, choices))})"
    if "minLength" in argument or "maxLength" in argument:
        return f"[^<]{{{argument.get('minLength', 0)},{argument.get('maxLength', '')}}}"
    return "text"


def _within(argument: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument, with the definitions that it may refer to."""
    return {**{key: schema[key] for key in ("$defs", "definitions") if key in schema}, **argument}


def _literal(text: str) -> str:
    """A text as GBNF has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
