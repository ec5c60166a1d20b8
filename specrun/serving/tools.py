"""The tools that a request lets the model call: `tools`, `tool_choice` and `parallel_tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specrun.constraints import check_readings, schema_to_gbnf
from specrun.errors import UsageError
from specrun.serving.fields import Fields

MOST_TOOLS = 512
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Tools:
    """What may be called.

    declared: the tools in OpenAI's shape, for the chat template. schemas: the JSON schema of each tool's arguments by
    name; that of any object for a tool whose own schema a grammar cannot express.
    forced: the names of which one must be called; empty if the model is free to call none.
    is_parallel: whether an answer may have several calls; one that must call a named tool has one.
    """

    declared: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    is_parallel: bool = True


def read_tools(fields: Fields) -> Tools | None:
    """The tools of a request; None if it has none, or must call none. Raises ApiError."""
    declared = [_declared(fields, i, tool) for i, tool in enumerate(fields.items("tools", MOST_TOOLS))]
    forced = _forced(fields, [tool["function"]["name"] for tool in declared])
    if forced is None or not declared:
        return None
    schemas = {tool["function"]["name"]: _schema(fields, i, tool["function"]) for i, tool in enumerate(declared)}
    is_named = isinstance(fields.raw("tool_choice"), dict)
    return Tools(declared, schemas, forced, fields.flag("parallel_tool_calls") is not False and not is_named)


def _declared(fields: Fields, i: int, tool: Any) -> dict[str, Any]:
    name = f"tools[{i}]"
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        fields.refuse(name, "must be an object with the type function and a function")
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        fields.refuse(f"{name}.function.name", "must have letters, digits, _ and - only")
    if not isinstance(function.get("description") or "", str):
        fields.refuse(f"{name}.function.description", "must be a string")
    parameters = function.get("parameters")
    if not isinstance(parameters or {}, dict):
        fields.refuse(f"{name}.function.parameters", "must be a JSON schema")
    # Templates look for all three.
    given = {"name": function["name"], "description": function.get("description") or ""}
    return {"type": "function", "function": {**given, "parameters": parameters or {**_ANY_OBJECT, "properties": {}}}}


def _schema(fields: Fields, i: int, function: Mapping[str, Any]) -> Any:
    """What the grammar holds the arguments to. Only `strict` insists that it is the whole schema."""
    schema = function["parameters"]
    try:
        check_readings(schema)
        schema_to_gbnf(schema)
    except (UsageError, RecursionError) as error:
        if (fields.raw("tools")[i]["function"]).get("strict") is True:
            fields.refuse(f"tools[{i}].function.parameters", f"cannot be enforced, as strict asks: {error}")
        return _ANY_OBJECT
    return schema if schema.get("type") == "object" else _ANY_OBJECT


def _forced(fields: Fields, names: list[str]) -> tuple[str, ...] | None:
    """The names of which one must be called; None if none may be."""
    choice = fields.raw("tool_choice")
    if choice is None or choice == "auto":
        return ()
    if choice == "none":
        return None
    if not names:
        fields.refuse("tool_choice", "needs tools")
    if choice == "required":
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        fields.refuse("tool_choice", "must be none, auto, required, or name a function of tools")
    return (name,)
