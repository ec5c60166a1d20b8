"""Turns `--grammar` and `--json-schema` into GBNF grammars, and bounds the schemas of strangers. Pure Python."""

from __future__ import annotations

from pathlib import Path

from specrun.errors import UsageError
from specrun.locations import decode, given_json, read_bytes

_MOST_BYTES = 2**24  # of a file; llama.cpp needs a second and 300 MB for a grammar of one MB


def read_grammar(grammar: Path | None, json_schema: Path | None) -> str | None:
    """The GBNF grammar that the options ask for, None without them. Raises UsageError for an unusable file."""
    if grammar and json_schema:
        raise UsageError("--grammar and --json-schema exclude each other; choose one")
    file = grammar or json_schema
    if not file:
        return None
    text = decode(read_bytes(file, UsageError, most=_MOST_BYTES), str(file), UsageError)
    if grammar:
        return text
    from specrun.constraints.json_schema import schema_to_gbnf

    try:
        return schema_to_gbnf(given_json(text, "the schema", UsageError))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
