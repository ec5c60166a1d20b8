"""The tools that a request lets the model call, and grammars of their calls in the way that a model writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf

from specrun.constraints.json_schema import schema_rules
from specrun.constraints.keywords import check_readings, pointed_at, restricting
from specrun.constraints.rules import Work, counted, json_literal
from specrun.constraints.scalars import FORMATS, lengths
from specrun.errors import UsageError
from specrun.reading.form import TOOL_CALL, TOOL_CALL_END, CallStyle
from specrun.serving.refusals import refused
from specrun.serving.request_fields import Fields, Json, must, parsed

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
        value = _coder_text(argument) if isinstance(argument, dict) else "text"
        usual = None if is_strict else "string"
        is_named = isinstance(argument, dict) and argument.get("type", usual) != "string"
        if is_named or not _may_be_text(argument, schema):
            value, more = schema_rules(schema, f"{prefix}{i}-", of=name)
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


def _coder_text(argument: Mapping[str, Any]) -> str:
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


MOST_TOOLS = 512
ANY_OBJECT: Json = {"type": "object"}
Converted = tuple[str, dict[str, str]]  # the rule of a schema, and the rules that it needs by name
_RULES_OF_ANY: Converted = ("object", {})
_NO_ARGUMENTS: Json = {**ANY_OBJECT, "properties": {}}
# What makes a schema allow other objects than its properties tell.
_NOT_PLAIN = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
_ARGUMENTS = {"hermes": "arguments", "llama3": "parameters"}
LONGEST_GRAMMAR = 2**18  # characters; llama.cpp needs a second and 300 MB for a million
_NAME = r"^[a-zA-Z0-9_.:-]{1,128}$"
_CHOICES = "be none, auto, required, or name a function of tools"


class _Function(Fields):
    name: Annotated[str, Field(validate_default=True, pattern=_NAME), must("have letters, digits, _ and - only")] = ""
    description: Annotated[str, BeforeValidator(lambda text: text or ""), must("be a string")] = ""
    parameters: Annotated[
        InstanceOf[Json], BeforeValidator(lambda schema: schema or _NO_ARGUMENTS), must("be a JSON schema")
    ] = _NO_ARGUMENTS
    strict: Any = None


class _Tool(Fields):
    type: Literal["function"] = "function"
    function: _Function


class _Named(Fields):
    name: str = ""


class _AllowedTool(Fields):
    function: _Named = _Named()


class _AllowedTools(Fields):
    mode: Annotated[Literal["auto", "required"], must("be auto or required")]
    tools: list[_AllowedTool]


class _ToolFields(Fields):
    tools: Annotated[
        list[Annotated[_Tool, must("be an object with the type function and a function")]],
        Field(max_length=MOST_TOOLS, fail_fast=True),
    ] = Field([])
    tool_choice: Annotated[str | InstanceOf[Json], must(_CHOICES)] = "auto"
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

    declared: list[Json] = field(default_factory=list)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Converted] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    forced: tuple[str, ...] = ()
    is_parallel: bool = True


def function_json(**fields: Any) -> Json:
    """A function in OpenAI's shape: a tool, a call, or the choice of a tool."""
    return {"type": "function", "function": fields}


def read_tools(body: Json, style: CallStyle | None = None) -> Tools | None:
    """The tools of a request; None if it has none, or must call none. style: how calls are written. Raises ApiError."""
    given = parsed(_ToolFields, body)
    functions, choice = [tool.function for tool in given.tools], given.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools" and functions:
        at = "tool_choice.allowed_tools"
        allowed = parsed(_AllowedTools, choice.get("allowed_tools"), at)
        names = {tool.function.name for tool in allowed.tools}
        functions, choice = [function for function in functions if function.name in names], allowed.mode
        if not names or names - {function.name for function in functions}:
            raise refused(at, "must name functions of tools")
    forced = _forced(choice, [function.name for function in functions])
    if choice == "none" or not functions:
        return None
    is_parallel = given.parallel_tool_calls and not isinstance(choice, dict)
    # Templates look for all three fields.
    told = [function_json(**one.model_dump(include={"name", "description", "parameters"})) for one in functions]
    strict = frozenset(function.name for function in functions if function.strict is True)
    converted = _converted(functions, style)
    schemas, rules = ({name: one[i] for name, one in converted.items()} for i in range(2))
    return Tools(told, schemas, rules, strict, forced, is_parallel)


def _forced(choice: str | Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """The tools of which the answer must call some."""
    if choice in ("auto", "none"):
        return ()
    if not names:
        raise refused("tool_choice", "needs tools")
    if choice == "required":
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise refused("tool_choice", f"must {_CHOICES}")
    return (str(name),)


def _converted(functions: Sequence[_Function], style: CallStyle | None) -> dict[str, tuple[Any, Converted]]:
    """The schema to which a grammar holds the arguments of each tool, and its rules, by name. Raises ApiError.

    Only `strict` insists that it is the whole schema. There is a bound for all together, so the small ones come first.
    """
    work, found = Work(), dict[int, tuple[Any, Converted]]()
    room = LONGEST_GRAMMAR // 2  # names of rules take as much
    sizes = [(function.strict is not True, len(str(function.parameters))) for function in functions]
    for i in sorted(range(len(functions)), key=sizes.__getitem__):
        schema, is_strict = _of_object(functions[i].parameters), functions[i].strict is True
        try:
            check_readings(schema)
            rules = schema_rules(schema, f"t{i}-", work)
            if is_strict and style == "coder" and (what := not_held(schema)):
                raise UsageError(f"this model's calls cannot be held to {what}; leave it or strict out")
        except (UsageError, RecursionError) as error:
            if is_strict:
                why = f"cannot be enforced, as strict asks: {error}"
                raise refused(f"tools[{i}].function.parameters", why) from error
            schema, rules = ANY_OBJECT, _RULES_OF_ANY
        size = sum(map(len, rules[1].values()))
        if size > room:
            if is_strict:
                why = f"have schemas that are too large together to enforce {functions[i].name}, as strict asks"
                raise refused("tools", why)
            schema, rules, size = ANY_OBJECT, _RULES_OF_ANY, 0
        found[i] = schema, rules
        room -= size
    return {function.name: found[i] for i, function in enumerate(functions)}


def _of_object(schema: Json) -> Json:
    """The schema of the objects that `schema` allows; that of any object, where it is not plain."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and isinstance(target := pointed_at(schema, reference), dict):
        schema = {key: value for key, value in schema.items() if key in {"$defs", "definitions"}} | target
    kinds = schema.get("type", "object")
    is_plain = "object" in (kinds if isinstance(kinds, list) else [kinds]) and not _NOT_PLAIN & schema.keys()
    return schema | ANY_OBJECT if is_plain else ANY_OBJECT


def call_rules(style: CallStyle, tools: Tools, is_begun: bool = False) -> tuple[str, dict[str, str]]:
    """An expression for an answer that consists of calls, and the rules that it needs.

    is_begun: after the first <tool_call>; not for Llama's way.
    """
    names = tools.forced or tuple(tools.schemas)
    rules: dict[str, str] = {}
    calls = [_call(style, name, tools, f"t{i}-", rules) for i, name in enumerate(names)]
    rules["call"] = " | ".join(calls)
    if style == "llama3":
        return ('call (";" ws call)*' if tools.is_parallel else "call"), rules
    rules["rest"] = f'ws call ws "{TOOL_CALL_END}"'
    more = f' (ws "{TOOL_CALL}" rest)*' if tools.is_parallel else ""
    return ("" if is_begun else f'"{TOOL_CALL}" ') + "rest" + more, rules


def _call(style: CallStyle, name: str, tools: Tools, prefix: str, rules: dict[str, str]) -> str:
    """A GBNF expression for a call; the rules that it needs are added to `rules`."""
    if style == "coder":
        parameters = coder_parameters(tools.schemas[name], prefix, rules, name in tools.strict)
        return f'{plain_literal(f"<function={name}>")} "\\n" {" ".join(parameters)} "</function>"'
    arguments, more = tools.rules[name]
    rules.update(more)
    head = f'"{{" ws "\\"name\\":" ws {json_literal(name)} "," ws "\\"{_ARGUMENTS[style]}\\":" ws'
    return f'{head} {arguments} ws "}}"'
