"""Turns `--grammar` and `--json-schema` into GBNF grammars, and bounds the schemas of strangers. Pure Python."""

from __future__ import annotations

import os
from pathlib import Path

from specrun.errors import UsageError
from specrun.locations import decode, given_json, names_file, read_bytes

_MOST_BYTES = 2**24  # of a file; llama.cpp needs a second and 300 MB for a grammar of one MB
_QUOTED = 200  # characters of a value in a message


def source_of(grammar: str | None, json_schema: str | None) -> str:
    """What errors call the grammar that the options ask for: its file, or the option that has the text itself."""
    given = str(grammar or json_schema)
    return ("--grammar" if grammar else "--json-schema") if _is_text(given) else given


def _is_text(given: str) -> bool:
    """Whether a value is no file but what would stand in it, as llama.cpp's options of these names have it."""
    return (given.lstrip().startswith("{") or "::=" in given) and not names_file(given)


def read_grammar(grammar: str | None, json_schema: str | None) -> str | None:
    """The GBNF grammar that the options ask for, None without them. Raises UsageError for an unusable one."""
    if grammar and json_schema:
        raise UsageError("--grammar and --json-schema exclude each other; choose one")
    if not (grammar or json_schema):
        return None
    text = str(grammar or json_schema)
    if not _is_text(text):
        if not os.path.exists(text):  # noqa: PTH110 - pathlib's raises for what is too long for a name
            form = 'GBNF, such as: root ::= "yes" | "no"' if grammar else 'a JSON schema, such as {"type": "object"}'
            option, quote = "--grammar" if grammar else "--json-schema", text[:_QUOTED] + "..." * (len(text) > _QUOTED)
            raise UsageError(f"{option}: {quote} is neither a file nor {form}")
        text = decode(read_bytes(Path(text), UsageError, most=_MOST_BYTES), text, UsageError)
    if grammar:
        return text
    from specrun.constraints.json_schema import schema_to_gbnf

    try:
        return schema_to_gbnf(given_json(text, "the schema", UsageError))
    except UsageError as error:
        raise UsageError(f"{source_of(grammar, json_schema)}: {error}") from error
