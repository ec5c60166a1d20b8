"""The catalog of models: the models.toml of the package, and the user's own models.toml, which overrides it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specrun.catalog.safe_names import is_safe_path, is_safe_repo
from specrun.catalog.split import quantization
from specrun.errors import UsageError
from specrun.locations import config_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The keys that models.toml may have, with the type of their values.
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
    """A model of the catalog; None where the catalog does not say."""

    alias: str
    repo: str  # on the hub, ORG/NAME
    file: str  # in the repository; of a split model, the first shard
    quantization: str
    family: str | None = None  # models of one family share a tokenizer
    revision: str | None = None  # commit on the hub; None for the newest
    bytes: int | None = None  # of all shards together
    licence: str | None = None
    context: int | None = None  # tokens that the model was trained for
    architecture: str | None = None
    trees: bool = True  # whether a pass checks token trees; of hybrid and recurrent architectures it checks chains
    drafts: tuple[str, ...] = ()  # names of recommended drafts, the best first
    verified: bool = False  # whether repository and file were seen in published material or by `specrun models check`


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """The tables of the package's models.toml: beside this file in a wheel, at the top of a source checkout."""
    installed = Path(__file__).with_name("models.toml")
    return _read(installed if installed.exists() else Path(__file__).parents[2] / "models.toml")


def catalog() -> dict[str, Entry]:
    """All entries by alias. The keys of the user's models.toml override those of the package one by one.

    Raises UsageError if the user's models.toml is not TOML or has unknown keys or values of a wrong type.
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
        raise UsageError(f"{path} is not TOML: {error}; correct it or move it away") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply; correct it or move it away") from error
    for table, allowed in _TABLES.items():
        _check_table(path, f"[{table}]", tables.setdefault(table, {}))
        for name, keys in tables[table].items():
            _check_keys(path, f'[{table}."{name}"]', keys, allowed)
    if unknown := set(tables) - set(_TABLES):
        raise UsageError(f'{path}: [{min(unknown)}] is unknown; a model is [models."NAME"] with a repo and a file')
    return tables


def _check_table(path: Path, table: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {table} must be a table; got {value!r}")


def _check_keys(path: Path, table: str, keys: Any, allowed: dict[str, type]) -> None:
    _check_table(path, table, keys)
    for key, value in keys.items():
        if key not in allowed:
            keys_text = ", ".join(allowed)
            dot = '; a name with a dot must be quoted, as in [models."qwen-0.5b"]' if isinstance(value, dict) else ""
            raise UsageError(f"{path}: {key} in {table} is unknown; keys are {keys_text}{dot}")
        is_valid = key != "drafts" or (isinstance(value, list) and all(isinstance(draft, str) for draft in value))
        if type(value) is not allowed[key] or not is_valid:
            raise UsageError(f"{path}: {key} in {table} must be a {allowed[key].__name__}; got {value!r}")


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return below | {name: below.get(name, {}) | keys for name, keys in above.items()}


def _entry(alias: str, keys: dict[str, Any], families: dict[str, Any], own_path: Path) -> Entry:
    values = families.get(keys.get("family", ""), {}) | keys
    for needed in ("repo", "file"):
        if needed not in values:
            raise UsageError(f'{own_path}: [models."{alias}"] needs a {needed}')
    for key, is_safe in (("repo", is_safe_repo), ("file", is_safe_path), ("revision", is_safe_path)):
        if key in values and not is_safe(values[key]):
            what = "ORG/NAME" if key == "repo" else "a name without .. and control characters"
            raise UsageError(f'{own_path}: {key} in [models."{alias}"] must be {what}; got {values[key]!r}')
    values.setdefault("quantization", quantization(values["file"]) or "unknown")
    return Entry(alias=alias, **(values | {"drafts": tuple(values.get("drafts", ()))}))
