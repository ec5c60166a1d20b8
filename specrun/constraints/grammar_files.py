"""Reads the files of `--grammar` and `--json-schema`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

from specrun.constraints.json_schema import schema_to_gbnf
from specrun.errors import UsageError
from specrun.locations import decode, read_bytes

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
    try:
        return schema_to_gbnf(json.loads(text, parse_constant=_refuse_number, parse_float=_finite))
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise UsageError(f"{file} is not JSON: {where}") from error
    except ValueError as error:  # Python refuses integers with thousands of digits
        raise UsageError(f"{file} has a number that is too long") from error
    except RecursionError as error:
        raise UsageError(f"{file} is nested too deeply; split it with $ref") from error
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse_number(number)


def _refuse_number(number: str) -> NoReturn:
    raise UsageError(f"{number} is not a number that JSON can represent; write a smaller one")
