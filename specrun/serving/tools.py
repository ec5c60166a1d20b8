"""The tools that a request lets the model call, and grammars of their calls in the way that a model writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf

from specrun.constraints import check_readings, grammar_text, json_literal, schema_rules, schema_to_gbnf
from specrun.errors import UsageError
from specrun.reading import hermes
from specrun.reading.form import CallStyle
from specrun.serving.api_error import refused
from specrun.serving.bodies import Fields, must, parsed

MOST_TOOLS = 512
ANY_OBJECT: dict[str, Any] = {"type": "object"}
_NO_ARGUMENTS: dict[str, Any] = {**ANY_OBJECT, "properties": {}}
_ARGUMENTS = {"hermes": "arguments", "llama3": "parameters"}
# Text up to </parameter>. It may not have "</p" in it: a grammar would have to count letters to allow the rest.
_TEXT = {"text": '([^<] | "<" [^/] | "</" [^p])*'}
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
    is_parallel = given.parallel_tool_calls and not isinstance(given.tool_choice, dict)
    # Templates look for all three fields.
    declared = [function.model_dump(include={"name", "description", "parameters"}) for function in functions]
    return Tools([{"type": "function", "function": function} for function in declared], schemas, forced, is_parallel)


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


def call_grammar(style: CallStyle, tools: Tools, is_begun: bool = False) -> str:
    """The grammar of an answer that consists of calls. is_begun: behind the first <tool_call>; not for Llama's way."""
    names = tools.forced or tuple(tools.schemas)
    rules: dict[str, str] = {}
    calls = [_call(style, name, tools.schemas[name], f"t{i}-", rules) for i, name in enumerate(names)]
    rules["call"] = " | ".join(calls)
    if style == "llama3":
        return grammar_text('call (";" ws call)*' if tools.is_parallel else "call", rules)
    rules["rest"] = f'ws call ws "{hermes.CLOSE}"'
    more = f' (ws "{hermes.OPEN}" rest)*' if tools.is_parallel else ""
    return grammar_text(("" if is_begun else f'"{hermes.OPEN}" ') + "rest" + more, rules)


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
            definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            value, more = schema_rules(definitions | argument, f"{prefix}{i}-")
            rules.update(more)
        parameter = f'{_literal(f"<parameter={name}>")} "\\n" {value} "\\n</parameter>\\n"'
        yield parameter if name in required else f"({parameter})?"


def _text(argument: Mapping[str, Any]) -> str:
    """A GBNF expression for a text that stands without quotes."""
    choices = argument.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
        return f"({' | '.join(map(_literal, choices))})"
    if "minLength" in argument or "maxLength" in argument:
        return f"[^<]{{{argument.get('minLength', 0)},{argument.get('maxLength', '')}}}"
    return "text"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
