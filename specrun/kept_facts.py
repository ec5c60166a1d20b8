"""Facts that took time to find out, each kept in a JSON file of its own, so that later runs know them.

    $SPECRUN_DATA_DIR/KIND/DIGEST.json   {"sha256": ..., "version": 1, "of": {...}, "value": ...}

`of` is everything that the fact depends on, by name, and DIGEST its fingerprint: for another model, machine, build of
llama.cpp or setting there is another file, or none. `sha256` is that of all that follows its line, so that no damaged
file is believed, whatever bit has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specrun.locations import data_dir, parse_json, set_aside, whole_file

Value = TypeVar("Value")

# Each kind's folder in the data folder, and what it is for people.
KINDS = {
    "profiles": "tuned profiles",
    "profiles/learned": "what runs learned",
    "profiles/unfinished": "unfinished tuning",
    "facts": "checks of llama.cpp",
    "first-passes": "first passes on GPUs",
    "exact": "sizes of exact passes",
    "orders": "trials of weights' orders",
    "tiles": "trials of tiled kernels",
    "fastest-drafts": "fastest drafts",
    "rates": "rates of memory and disks",
    "said": "notices given",
}
_VERSION = 1  # of the files


@dataclass(frozen=True)
class KeptFact:
    """What a file holds. of: what the fact depends on. value: the fact, as a JSON value."""

    path: Path
    of: dict[str, Any]
    value: Any


def fingerprint(of: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of what a fact depends on."""
    text = json.dumps(of, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folder(kind: str) -> Path:
    """Where the facts of a kind are kept."""
    return data_dir() / kind


def path_of(kind: str, of: Mapping[str, Any]) -> Path:
    """The file of a fact, which need not exist. of: what it depends on, as JSON values."""
    return folder(kind) / f"{fingerprint(of)}.json"


def read(path: Path) -> KeptFact:
    """The fact in a file. Raises OSError, and ValueError for a damaged file or one of another version of specrun."""
    first, _, rest = path.read_bytes().partition(b"\n")
    if first != _first_line(rest):
        raise ValueError("it is damaged, or of another version")
    kept = parse_json(b"{" + rest)
    if kept["version"] != _VERSION:
        raise ValueError(f"it is of version {kept['version']}, not {_VERSION}")
    return KeptFact(path, kept["of"], kept["value"])


def write(kind: str, of: Mapping[str, Any], value: Any) -> Path:
    """Keep a fact, whole or not at all, and return its path. Raises OSError."""
    text = json.dumps({"version": _VERSION, "of": of, "value": value}, indent=1)
    rest = text.partition("\n")[2].encode()
    path = path_of(kind, of)
    with whole_file(path) as file:
        file.write(_first_line(rest) + b"\n" + rest)
    return path


def _first_line(rest: bytes) -> bytes:
    return b'{"sha256": "%s",' % hashlib.sha256(rest).hexdigest().encode()


def recall(
    kind: str, of: Mapping[str, Any], make: Callable[[Any], Value], note: Callable[[str], None] | None = None
) -> Value | None:
    """What `make` makes of a fact; None if it is not known, or if its file is damaged.

    note: for facts that nobody finds out again by the way. A file of theirs that is damaged is renamed, and `note` is
    called with a clause that says so.
    """
    path = path_of(kind, of)
    try:
        return make(read(path).value)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if note:
            note(f"{path} cannot be read: {error.strerror}")
    except Exception as error:  # a value of another version may fail anywhere in `make`
        if note:
            note(f"{path} cannot be used ({error}), and {set_aside(path)}")
    return None


def remember(kind: str, of: Mapping[str, Any], value: Any) -> None:
    """Keep a fact. If the disk refuses, it is found out again."""
    with suppress(OSError):
        write(kind, of, value)


def once(kind: str, of: Mapping[str, Any], find_out: Callable[[], Value], make: Callable[[Any], Value]) -> Value:
    """The fact, as it is known or else found out now. make: makes it of its JSON value, which it is itself."""
    known = recall(kind, of, make)
    if known is None:
        known = find_out()
        remember(kind, of, known)
    return known


def every(kind: str) -> Iterator[KeptFact | Path]:
    """All facts of a kind, and the paths of files that cannot be read."""
    for path in sorted(folder(kind).glob("*.json")):
        try:
            yield read(path)
        except (OSError, ValueError, LookupError, TypeError):
            yield path
