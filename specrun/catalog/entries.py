"""The catalog: models.toml that ships, with the user's own models.toml on top."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specrun.catalog.split import quantization
from specrun.errors import UsageError
from specrun.locations import config_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FAMILY_KEYS: dict[str, type] = {"architecture": str, "licence": str, "context": int, "trees": bool}
_MODEL_KEYS: dict[str, type] = _FAMILY_KEYS | {
    "family": str,
    "repo": str,
    "revision": str,
    "file": str,
    "quantization": str,
    "bytes": int,
    "drafts": list,
    "verified": bool,
}
_TABLES: dict[str, dict[str, type]] = {"families": _FAMILY_KEYS, "models": _MODEL_KEYS}


@dataclass(frozen=True)
class Entry:
    """A model of the catalog.

    repo, revision, file: on the hub; revision None is the newest, file is the first shard of a split model.
    bytes: of all shards together. family: models of one family share a tokenizer. trees: whether token trees work;
    not with hybrid and recurrent architectures. drafts: names of recommended drafts, the best first.
    verified: repository and file name were seen in published material, or by `specrun models check`.
    """

    alias: str
    repo: str
    file: str
    quantization: str
    family: str | None = None
    revision: str | None = None
    bytes: int | None = None
    licence: str | None = None
    context: int | None = None
    architecture: str | None = None
    trees: bool = True
    drafts: tuple[str, ...] = ()
    verified: bool = False


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """The tables of the models.toml that ships: in the wheel beside this file, in a checkout at its top."""
    beside = Path(__file__).with_name("models.toml")
    return _read(beside if beside.exists() else Path(__file__).parents[2] / "models.toml")


def catalog() -> dict[str, Entry]:
    """All entries by alias, the user's merged key by key over those that ship.

    Raises UsageError for a models.toml of the user's that is no TOML or has keys that mean nothing.
    """
    own_path = config_dir() / "models.toml"
    own = _read(own_path) if own_path.exists() else {table: {} for table in _TABLES}
    families = _merged(shipped()["families"], own["families"])
    models = _merged(shipped()["models"], own["models"])
    return {alias: _entry(alias, keys, families, own_path) for alias, keys in models.items()}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}; mend it or move it away") from error
    for table, allowed in _TABLES.items():
        _check_table(path, f"[{table}]", tables.setdefault(table, {}))
        for name, keys in tables[table].items():
            _check_keys(path, f'[{table}."{name}"]', keys, allowed)
    if unknown := set(tables) - set(_TABLES):
        raise UsageError(f'{path}: [{min(unknown)}] is unknown; a model is [models."NAME"] with a repo and a file')
    return tables


def _check_table(path: Path, where: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {where} must be a table; got {value!r}")


def _check_keys(path: Path, where: str, keys: Any, allowed: dict[str, type]) -> None:
    _check_table(path, where, keys)
    for key, value in keys.items():
        if key not in allowed:
            keys_text = ", ".join(allowed)
            dot = '; a name with a dot must be quoted, as in [models."qwen-0.5b"]' if isinstance(value, dict) else ""
            raise UsageError(f"{path}: {key} in {where} is unknown; keys are {keys_text}{dot}")
        strings = key != "drafts" or (isinstance(value, list) and all(isinstance(draft, str) for draft in value))
        if type(value) is not allowed[key] or not strings:
            raise UsageError(f"{path}: {key} in {where} must be a {allowed[key].__name__}; got {value!r}")


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return below | {name: below.get(name, {}) | keys for name, keys in above.items()}


def _entry(alias: str, keys: dict[str, Any], families: dict[str, Any], own_path: Path) -> Entry:
    values = families.get(keys.get("family", ""), {}) | keys
    for needed in ("repo", "file"):
        if needed not in values:
            raise UsageError(f'{own_path}: [models."{alias}"] needs a {needed}')
    values.setdefault("quantization", quantization(values["file"]) or "unknown")
    return Entry(alias=alias, **(values | {"drafts": tuple(values.get("drafts", ()))}))
