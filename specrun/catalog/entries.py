"""The catalog of models: the models.toml of the package, and the user's own models.toml, which overrides it; and
architectures.toml: what llama.cpp does with models of each architecture, by the name of what it does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from specrun.catalog.file_names import is_safe_path, is_safe_repo, quantization
from specrun.errors import UsageError, disk_errors
from specrun.locations import config_dir, of_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_architectures = tomllib.loads((Path(__file__).parent / "architectures.toml").read_text(encoding="utf-8"))

READ_IN = str(_architectures.pop("read_in"))
"""Release of llama-cpp-python in whose llama.cpp the tables were read."""

TABLES = {name: frozenset(map(str, architectures)) for name, architectures in _architectures.items()}
"""The architectures of each table, by its name in the file."""


def does(what: str, architecture: str | None) -> bool:
    """Whether an architecture is in the table of this name."""
    return architecture in TABLES[what]


# The keys that models.toml may have in its tables, and the types of their values.
_FAMILY_KEYS: dict[str, type] = {
    "about": str, "companions": list, "architecture": str, "licence": str, "context": int, "trees": bool,
    "vocabulary": int, "tied": bool, "other_drafts": dict,
}  # fmt: skip
_MODEL_KEYS = _FAMILY_KEYS | {
    "family": str, "repo": str, "revision": str, "file": str, "quantization": str, "bytes": int, "drafts": list,
    "shape": dict, "recommended": bool, "verified": bool,
}  # fmt: skip
_SHAPE_KEYS = ("parameters", "active", "layers", "width", "kv", "experts", "experts_used")
# Bits of a weight by quantization: on average, in the token embedding, and in the output matrix or a tied embedding.
# Taken from the sizes of the catalog's files and llama.cpp's rules for mixes of types; no other type is estimated.
_BITS = {
    "q2_k": (3.2, 2.6, 6.6),
    "q4_0": (4.6, 4.5, 6.6),
    "q4_k_m": (4.9, 4.5, 6.6),
    "q4_k_xl": (5.2, 6.6, 6.6),
    "q8_0": (8.5, 8.5, 8.5),
    "mxfp4": (4.25, 8.5, 8.5),
}

# What is published beside the models of a family that can draft for them, by its name in models.toml.
COMPANIONS = {
    "sibling": "a small sibling", "assistant": "an assistant", "mtp": "MTP layers", "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head", "dspark": "a DSpark head",
}  # fmt: skip

Kind = Literal["dense", "hybrid", "moe"]
_TABLES = {"families": _FAMILY_KEYS, "models": _MODEL_KEYS}


@dataclass(frozen=True)
class Shape:
    """What placement needs to know of a model whose file is not on this machine; rounded."""

    parameters: float  # all weights
    layers: int
    width: int  # of a token's vector between layers
    kv: int  # bytes of a token in the KV cache of all layers, in f16
    active: float | None = None  # weights that a token of a mixture uses; None for a dense model
    experts: int = 0  # routed experts of a layer; 0 for a dense model
    experts_used: int = 0  # experts of a layer that a token uses

    @property
    def expert_share(self) -> float:
        """The share of all weights that lies in routed experts. A token uses some of these and all other weights."""
        if self.active is None:
            return 0.0
        return (self.parameters - self.active) / (1 - self.experts_used / self.experts) / self.parameters


@dataclass(frozen=True)
class Entry:
    """A model of the catalog. A field is None where the catalog does not say."""

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
    trees: bool = True  # whether a pass can check a tree; hybrid and recurrent architectures check chains
    vocabulary: int | None = None  # tokens
    tied: bool = False  # whether the token embedding is also the output matrix
    shape: Shape | None = None
    about: str | None = None  # a sentence about the family
    companions: tuple[str, ...] = ()  # which of COMPANIONS the family has, the best known first
    drafts: tuple[str, ...] = ()  # names of recommended drafts, the best first
    # Small models with another tokenizer, by their aliases: percent of this model's text that both tokenizers share.
    other_drafts: Mapping[str, int] = field(default_factory=dict)
    recommended: bool = False  # whether it is the model that README and menus recommend, with its first draft
    verified: bool = False  # whether repository and file were seen in published lists of models

    @property
    def kind(self) -> Kind:
        """`moe` for a mixture of experts, else `hybrid` where a recurrent state cannot branch, else `dense`."""
        if self.shape and self.shape.experts:
            return "moe"
        return "dense" if self.trees else "hybrid"

    @property
    def expected_bytes(self) -> int | None:
        """The size of the file, or an estimate by its parameters and quantization; None if neither is known."""
        bits = self._bits
        return self.bytes or (int(self.shape.parameters * bits[0] / 8) if self.shape and bits else None)

    @property
    def table_bytes(self) -> tuple[int, int]:
        """Estimated bytes of the token embedding and of the output matrix, which a tied embedding is itself."""
        bits = self._bits
        if not (self.shape and self.vocabulary and bits):
            return 0, 0
        _, embedding, output = (int(self.vocabulary * self.shape.width * n / 8) for n in bits)
        return (output if self.tied else embedding), output

    @property
    def expert_bytes(self) -> int:
        """Estimated bytes of all routed experts; 0 for a dense model."""
        bits, n_bytes = self._bits, self.expected_bytes
        if not (self.shape and bits and n_bytes):
            return 0
        return int(self.shape.expert_share * min(n_bytes, self.shape.parameters * bits[0] / 8))

    @property
    def _bits(self) -> tuple[float, float, float] | None:
        return _BITS.get(self.quantization.lower().removeprefix("ud-"))


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """The tables of the package's models.toml: beside this file in a wheel, at the top of a source checkout."""
    installed = Path(__file__).with_name("models.toml")
    return _read(installed if installed.exists() else Path(__file__).parents[2] / "models.toml")


def catalog() -> Mapping[str, Entry]:
    """All entries by alias. A key of the user's models.toml overrides the package's. Raises UsageError."""
    own_path = config_dir() / "models.toml"
    return of_files(_catalog, [own_path], own_path)


@lru_cache(maxsize=1)  # each name that is looked up asks for it
def _catalog(_states: tuple[object, ...], own_path: Path) -> dict[str, Entry]:
    own = _read(own_path) if own_path.exists() else {table: {} for table in _TABLES}
    families = _merged(shipped()["families"], own["families"])
    models = _merged(shipped()["models"], own["models"])
    return {alias: _entry(alias, keys, families, own_path) for alias, keys in models.items()}


def recommended(entries: Mapping[str, Entry]) -> Entry | None:
    """The model that everything recommends, with the first of its drafts; None if a models.toml took that away."""
    return next((entry for entry in entries.values() if entry.recommended), None)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with disk_errors("read", path, UsageError):
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}; correct it or move it away") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply; correct it or move it away") from error
    for table, allowed in _TABLES.items():
        _check_table(path, f"[{table}]", tables.setdefault(table, {}))
        for name, keys in tables[table].items():
            _check_table(path, f'[{table}."{name}"]', keys)
            _check_keys(path, f'[{table}."{name}"]', keys, allowed)
    if unknown := set(tables) - set(_TABLES):
        raise UsageError(f'{path}: [{min(unknown)}] is unknown; a model is [models."NAME"] with a repo and a file')
    return tables


def _check_table(path: Path, table: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {table} must be a table; got {value!r}")


def _check_keys(path: Path, table: str, keys: dict[str, Any], allowed: dict[str, type]) -> None:
    for key, value in keys.items():
        if key not in allowed:
            dot = '; a name with a dot must be quoted, as in [models."qwen-0.5b"]' if isinstance(value, dict) else ""
            raise UsageError(f"{path}: {key} in {table} is unknown; keys are {', '.join(allowed)}{dot}")
        is_valid = not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if type(value) is not allowed[key] or not is_valid:
            raise UsageError(f"{path}: {key} in {table} must be a {allowed[key].__name__}; got {value!r}")
    if unknown := set(keys.get("companions", ())) - set(COMPANIONS):
        raise UsageError(f"{path}: {min(unknown)} in {table} is no companion; those are {', '.join(COMPANIONS)}")
    if wrong := [name for name, n in keys.get("other_drafts", {}).items() if type(n) is not int or not 0 <= n <= 100]:
        raise UsageError(f"{path}: {wrong[0]} in other_drafts of {table} must be a number of percent")
    if "shape" not in keys:
        return
    shape: dict[str, Any] = keys["shape"]
    are_numbers = all(key in _SHAPE_KEYS and type(n) in (int, float) and n > 0 for key, n in shape.items())
    mixture = {"active", "experts", "experts_used"} & shape.keys()
    if not are_numbers or not {"parameters", "layers", "width", "kv"} <= shape.keys() or len(mixture) in (1, 2):
        numbers = f"numbers above 0, of a mixture all of {', '.join(_SHAPE_KEYS)}"
        raise UsageError(f"{path}: shape in {table} must have {numbers}; got {shape}")
    if mixture and not (shape["active"] < shape["parameters"] and shape["experts_used"] < shape["experts"]):
        raise UsageError(f"{path}: shape in {table} says that a token uses all experts; got {shape}")


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
    lists = {key: tuple(values.get(key, ())) for key in ("companions", "drafts")}
    shape = {"shape": Shape(**values["shape"])} if "shape" in values else {}
    return Entry(alias=alias, **(values | lists | shape))


def can_draft(companion: str, architecture: str | None) -> bool:
    """Whether specrun can draft with one of COMPANIONS for a target of this architecture."""
    table = {"assistant": "gives_cache", "mtp": "mtp"}.get(companion, "layer_inputs")
    return companion == "sibling" or does(table, architecture)


def how_to_draft(companion: str, architecture: str | None) -> str:
    """What specrun does with a companion, and what to give for it."""
    is_mtp = companion == "mtp"
    if not can_draft(companion, architecture):
        return f"specrun cannot draft with {'them' if is_mtp else 'it'}"
    return "--draft mtp, if the file has them" if is_mtp else "give its file as --draft"


def best_companion(companions: Sequence[str], architecture: str | None) -> str | None:
    """The first of a family's companions, and what specrun does with it; None if the text itself drafts alone."""
    return f"{COMPANIONS[companions[0]]} ({how_to_draft(companions[0], architecture)})" if companions else None
