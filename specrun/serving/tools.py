"""The tools that a request lets the model call, and grammars of their calls in the way that a model writes them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf

from specrun.constraints import (
    Work,
    check_readings,
    json_literal,
    pointed_at,
    schema_rules,
)
from specrun.errors import UsageError
from specrun.reading import hermes
from specrun.reading.form import CallStyle
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, must, parsed
from specrun.serving.coder_calls import coder_parameters, plain_literal

MOST_TOOLS = 512
ANY_OBJECT: dict[str, Any] = {"type": "object"}
Converted = tuple[str, dict[str, str]]  # the rule of a schema, and the rules that it needs by name
_RULES_OF_ANY: Converted = ("object", {})
_NO_ARGUMENTS: dict[str, Any] = {**ANY_OBJECT, "properties": {}}
_DEFINITIONS = {"$defs", "definitions"}
# What makes a schema allow other objects than its properties tell.
_NOT_PLAIN = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
_ARGUMENTS = {"hermes": "arguments", "llama3": "parameters"}
LONGEST_GRAMMAR = 2**18  # characters; llama.cpp needs a second and 300 MB for a million
_NAME = r"^[a-zA-Z0-9_.:-]{1,128}$"


class _Function(Fields):
    name: Annotated[str, Field(validate_default=True, pattern=_NAME), must("have letters, digits, _ and - only")] = ""
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
    parallel_tool_calls: bool = True


@dataclass(frozen=True)
class Tools:
    """What may be called.

    declared: the tools in OpenAI's shape, for the chat template. schemas: the JSON schema of each tool's arguments by
    name; that of any object for a tool whose own schema a grammar cannot express. rules: what they are in a grammar.
    strict: the tools whose arguments must be valid by their schemas, whatever the choice is.
    forced: the tools of which the answer must call some; empty if it may call none.
    is_parallel: whether an answer may have several calls. It has a single call if the request names the tool.
    """

    declared: list[dict[str, Any]] = field(default_factory=list)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Converted] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    forced: tuple[str, ...] = ()
    is_parallel: bool = True


def read_tools(body: Mapping[str, Any]) -> Tools | None:
    """The tools of a request; None if it has none, or must call none. Raises ApiError."""
    given = parsed(_ToolFields, body)
    functions = [tool.function for tool in given.tools]
    forced = _forced(given.tool_choice, [function.name for function in functions])
    if forced is None or not functions:
        return None
    is_parallel = given.parallel_tool_calls and not isinstance(given.tool_choice, dict)
    # Templates look for all three fields.
    declared = [function.model_dump(include={"name", "description", "parameters"}) for function in functions]
    told = [{"type": "function", "function": function} for function in declared]
    strict = frozenset(function.name for function in functions if function.strict is True)
    return Tools(told, *_of_fitting_size(_converted(functions), strict), strict, forced, is_parallel)


def _converted(functions: Sequence[_Function]) -> dict[str, tuple[Any, Converted]]:
    """The schema to which a grammar holds the arguments of each tool, and its rules, by name. Raises ApiError.

    Only `strict` insists that it is the whole schema. There is a bound for all together, so the small ones come first.
    """
    work, found = Work(), dict[int, tuple[Any, Converted]]()
    sizes = [(function.strict is not True, len(str(function.parameters))) for function in functions]
    for i in sorted(range(len(functions)), key=sizes.__getitem__):
        schema = _of_object(functions[i].parameters)
        try:
            check_readings(schema)
            found[i] = schema, schema_rules(schema, f"t{i}-", work)
        except (UsageError, RecursionError) as error:
            if functions[i].strict is True:
                why = f"cannot be enforced, as strict asks: {error}"
                raise refused(f"tools[{i}].function.parameters", why) from error
            found[i] = ANY_OBJECT, _RULES_OF_ANY
    return {function.name: found[i] for i, function in enumerate(functions)}


def _of_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the objects that `schema` allows; that of any object, where it is not plain."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and isinstance(target := pointed_at(schema, reference), dict):
        schema = {key: value for key, value in schema.items() if key in _DEFINITIONS} | target
    kinds = schema.get("type", "object")
    is_plain = "object" in (kinds if isinstance(kinds, list) else [kinds]) and not _NOT_PLAIN & schema.keys()
    return schema | ANY_OBJECT if is_plain else ANY_OBJECT


def _of_fitting_size(
    converted: Mapping[str, tuple[Any, Converted]], strict: Container[str]
) -> tuple[dict[str, Any], dict[str, Converted]]:
    """The schemas and their rules, with any object for the largest if the grammar of all would be too large. Raises
    ApiError.
    """
    sizes = {name: sum(map(len, rules.values())) for name, (_, (_, rules)) in converted.items()}
    room = LONGEST_GRAMMAR // 2  # names of rules take as much
    result = {name: schema for name, (schema, _) in converted.items()}
    rules = {name: found for name, (_, found) in converted.items()}
    for name in sorted(result, key=lambda name: (name not in strict, sizes[name])):
        room -= sizes[name]
        if room < 0 and name in strict:
            raise refused("tools", f"have schemas that are too large together to enforce {name}, as strict asks")
        if room < 0:
            result[name], rules[name] = ANY_OBJECT, _RULES_OF_ANY
            room += sizes[name]
    return result, rules


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


def call_rules(style: CallStyle, tools: Tools, is_begun: bool = False) -> tuple[str, dict[str, str]]:
    """An expression for an answer that consists of calls, and the rules that it needs.

    is_begun: behind the first <tool_call>; not for Llama's way.
    """
    names = tools.forced or tuple(tools.schemas)
    rules: dict[str, str] = {}
    calls = [_call(style, name, tools, f"t{i}-", rules) for i, name in enumerate(names)]
    rules["call"] = " | ".join(calls)
    if style == "llama3":
        return ('call (";" ws call)*' if tools.is_parallel else "call"), rules
    rules["rest"] = f'ws call ws "{hermes.CLOSE}"'
    more = f' (ws "{hermes.OPEN}" rest)*' if tools.is_parallel else ""
    return ("" if is_begun else f'"{hermes.OPEN}" ') + "rest" + more, rules


def _call(style: CallStyle, name: str, tools: Tools, prefix: str, rules: dict[str, str]) -> str:
    """A GBNF expression for a call; the rules that it needs are added to `rules`."""
    if style == "coder":
        parameters = coder_parameters(tools.schemas[name], prefix, rules, name in tools.strict)
        return f'{plain_literal(f"<function={name}>")} "\\n" {" ".join(parameters)} "</function>"'
    arguments, more = tools.rules[name]
    rules.update(more)
    head = f'"{{" ws "\\"name\\":" ws {json_literal(name)} "," ws "\\"{_ARGUMENTS[style]}\\":" ws'
    return f'{head} {arguments} ws "}}"'
