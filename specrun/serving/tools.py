"""The tools that a request lets the model call: `tools`, `tool_choice` and `parallel_tool_calls`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf

from specrun.constraints import check_readings, schema_to_gbnf
from specrun.errors import UsageError
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, must, parsed

MOST_TOOLS = 512
ANY_OBJECT: dict[str, Any] = {"type": "object"}
_NO_ARGUMENTS: dict[str, Any] = {**ANY_OBJECT, "properties": {}}
_NAME = r"^[a-zA-Z0-9_.:-]{1,128}$"


class _Function(Fields):
    name: Annotated[str, Field(pattern=_NAME), must("have letters, digits, _ and - only")] = Field(
        "", validate_default=True
    )
    description: Annotated[str, BeforeValidator(lambda text: text or ""), must("be a string")] = ""
    parameters: Annotated[
        InstanceOf[dict[str, Any]], BeforeValidator(lambda schema: schema or _NO_ARGUMENTS), must("be a JSON schema")
    ] = _NO_ARGUMENTS
    strict: Any = None


class _Tool(Fields):
    type: Literal["function"] = "function"
    function: _Function


class _ToolFields(Fields):
    tools: Annotated[
        list[Annotated[_Tool, must("be an object with the type function and a function")]],
        Field(max_length=MOST_TOOLS, fail_fast=True),
    ] = Field([])
    tool_choice: Any = None


class _CallFields(Fields):
    parallel_tool_calls: bool = True


@dataclass(frozen=True)
class Tools:
    """What may be called.

    declared: the tools in OpenAI's shape, for the chat template. schemas: the JSON schema of each tool's arguments by
    name; that of any object for a tool whose own schema a grammar cannot express.
    forced: the tools of which the answer must call some; empty if it may call none.
    is_parallel: whether an answer may have several calls. It has a single call if the request names the tool.
    """

    declared: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    is_parallel: bool = True


def read_tools(body: Mapping[str, Any]) -> Tools | None:
    """The tools of a request; None if it has none, or must call none. Raises ApiError."""
    given = parsed(_ToolFields, body)
    functions = [tool.function for tool in given.tools]
    forced = _forced(given.tool_choice, [function.name for function in functions])
    if forced is None or not functions:
        return None
    schemas = {function.name: _schema(i, function) for i, function in enumerate(functions)}
    is_parallel = parsed(_CallFields, body).parallel_tool_calls and not isinstance(given.tool_choice, dict)
    # Templates look for all three fields.
    declared = [function.model_dump(include={"name", "description", "parameters"}) for function in functions]
    return Tools([{"type": "function", "function": one} for one in declared], schemas, forced, is_parallel)


def _schema(i: int, function: _Function) -> Any:
    """What the grammar holds the arguments to. Only `strict` insists that it is the whole schema."""
    schema = function.parameters
    try:
        check_readings(schema)
        schema_to_gbnf(schema)
    except (UsageError, RecursionError) as error:
        if function.strict is True:
            raise refused(f"tools[{i}].function.parameters", f"cannot be enforced, as strict asks: {error}") from error
        return ANY_OBJECT
    return schema if schema.get("type") == "object" else ANY_OBJECT


def _forced(choice: Any, names: list[str]) -> tuple[str, ...] | None:
    """The tools of which the answer must call some; None if it may not call any."""
    if choice is None or choice == "auto":
        return ()
    if choice == "none":
        return None
    if not names:
        raise refused("tool_choice", "needs tools")
    if choice == "required":
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise refused("tool_choice", "must be none, auto, required, or name a function of tools")
    return (name,)
