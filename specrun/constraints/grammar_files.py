"""Reading `--grammar` and `--json-schema`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

from specrun.constraints.json_schema import schema_to_gbnf
from specrun.errors import UsageError


def read_grammar(grammar: Path | None, json_schema: Path | None) -> str | None:
    """The GBNF text that the options ask for, None without them. Raises UsageError for a file that cannot be used."""
    if grammar and json_schema:
        raise UsageError("--grammar and --json-schema exclude each other; choose one")
    if grammar:
        return _text(grammar)
    return _of_schema(json_schema) if json_schema else None


def _of_schema(file: Path) -> str:
    text = _text(file)
    try:
        schema = json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
        return schema_to_gbnf(schema)
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise UsageError(f"{file} {message}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise UsageError(f"{file} has a number that is too long") from error
    except RecursionError as error:
        raise UsageError(f"{file} is nested too deeply; split it with $ref") from error
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        message = f"{file} is not UTF-8 (byte 0x{byte:02x} at offset {error.start}); convert it first"
        raise UsageError(message) from error


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse_number(number)


def _refuse_number(number: str) -> NoReturn:
    raise UsageError(f"{number} is no number that JSON can hold; write a smaller one")
