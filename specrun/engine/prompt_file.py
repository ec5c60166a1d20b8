"""The file of a prompt's state: what a text left in the caches of both models, and what it may be used with.

Its first line names the format, and has the SHA-256 of the second line, which is a JSON object: the tokens, what the
state may be used with, and the type, the shape and the SHA-256 of the arrays that follow. Nothing of a file is used
unless all of that is right.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrun.engine.engine import SavedCaches
from specrun.llama.draft import SavedDraft
from specrun.llama.heads.target_states import SavedStates
from specrun.llama.rollback import HeldText, PromptState, SavedText
from specrun.locations import parse_json, whole_file

_FORMAT = "specrun prompt 1"
_MOST_HEAD_BYTES = 1 << 28  # of the first two lines: some million tokens
_CHUNK = 1 << 24  # bytes that are read or written at once

Array = NDArray[Any]


class DamagedStateError(ValueError):
    """A file that is not, or not any more, what was written."""


class StoppedError(Exception):
    """Writing was stopped."""


@dataclass(frozen=True)
class Head:
    """What a file says of its state, without the state.

    path: the file. subject: the fingerprint of what the target's part may be used with. draft: that of the draft's part
    and of a head's states; None without a draft. held: the text; where its cache can go back to has no state.
    seconds_per_token: what reading a token of a prompt took. n_bytes: of the whole file.
    """

    path: Path
    subject: str
    draft: str | None
    held: HeldText
    seconds_per_token: float
    n_bytes: int
    value: dict[str, Any]  # the JSON object
    begin: int  # of the arrays, in bytes


def write(
    path: Path,
    saved: SavedCaches,
    subject: str,
    draft: str | None,
    seconds_per_token: float,
    is_stopped: Callable[[], bool],
) -> None:
    """Write the file, whole or not at all; only its owner may read it.

    The arguments are the fields of `Head`. is_stopped: asked now and then whether to end early. Raises OSError and
    StoppedError.
    """
    target, of_draft, held = saved.target, saved.draft, saved.held
    arrays: dict[str, Array] = {"target": target.state}
    value: dict[str, Any] = {
        "subject": subject,
        "draft": draft,
        "seconds_per_token": seconds_per_token,
        "tokens": held.tokens,
        "n_cached": held.n_cached,
        "any_end": held.any_end,
        "prompt_end": held.prompt.end if held.prompt else 0,
        "is_beginning": held.is_beginning,
    }
    if held.prompt:
        arrays["prompt"] = held.prompt.state
    if target.for_head:
        arrays["head"] = target.for_head.states
        value["head_tokens"] = target.for_head.tokens
    if of_draft:
        arrays["draft"] = of_draft.state
        value["draft_tokens"], value["n_forgotten"] = of_draft.tokens, of_draft.n_forgotten
    value["arrays"] = {name: [array.dtype.name, array.shape] for name, array in arrays.items()}
    value["sha256"] = _digest(arrays.values(), is_stopped)
    line = json.dumps(value, separators=(",", ":")).encode()
    with whole_file(path, private=True) as file:
        file.write(f"{_FORMAT} {hashlib.sha256(line).hexdigest()}\n".encode() + line + b"\n")
        for array in arrays.values():
            for chunk in _chunks(array):
                _go_on(is_stopped)
                file.write(chunk)


def read_head(path: Path) -> Head:
    """The head of a file. Raises DamagedStateError if it is no whole state, and OSError."""
    with path.open("rb") as file:
        first = file.readline(200)
        line = file.readline(_MOST_HEAD_BYTES)
        n_bytes = os.fstat(file.fileno()).st_size
    if first != f"{_FORMAT} {hashlib.sha256(line[:-1]).hexdigest()}\n".encode():
        raise DamagedStateError(path.name)
    value = parse_json(line)
    begin = len(first) + len(line)
    if begin + sum(_n_bytes(*array) for array in value["arrays"].values()) != n_bytes:
        raise DamagedStateError(path.name)
    end = value["prompt_end"]
    prompt = PromptState(end, np.empty(0, np.uint8)) if end else None
    held = HeldText(value["tokens"], value["n_cached"], value["any_end"], prompt, is_beginning=value["is_beginning"])
    return Head(path, value["subject"], value["draft"], held, value["seconds_per_token"], n_bytes, value, begin)


def read(head: Head, with_draft: bool) -> SavedCaches:
    """The state of a file. with_draft: with the parts of the draft. Raises DamagedStateError, OSError, MemoryError."""
    value = head.value
    arrays: dict[str, Array] = {}
    digest = hashlib.sha256()
    with head.path.open("rb", buffering=0) as file:
        file.seek(head.begin)
        for name, (kind, shape) in value["arrays"].items():
            arrays[name] = np.empty(shape, kind)
            for chunk in _chunks(arrays[name]):
                if file.readinto(chunk) != len(chunk):  # a regular file gives what is asked for
                    raise DamagedStateError(head.path.name)
                digest.update(chunk)
    if digest.hexdigest() != value["sha256"]:
        raise DamagedStateError(head.path.name)
    prompt = PromptState(value["prompt_end"], arrays["prompt"]) if "prompt" in arrays else None
    held = replace(head.held, prompt=prompt)
    has_head = with_draft and "head" in arrays
    for_head = SavedStates(value["head_tokens"], arrays["head"]) if has_head else None
    has_draft = with_draft and "draft" in arrays
    draft = SavedDraft(value["draft_tokens"], value["n_forgotten"], arrays["draft"]) if has_draft else None
    return SavedCaches(SavedText(held, arrays["target"], for_head), draft)


def _n_bytes(kind: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize


def _chunks(array: Array) -> list[memoryview]:
    flat = array.reshape(-1).view(np.uint8)
    return [flat[i : i + _CHUNK].data for i in range(0, len(flat), _CHUNK)]


def _digest(arrays: Any, is_stopped: Callable[[], bool]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        for chunk in _chunks(array):
            _go_on(is_stopped)
            digest.update(chunk)
    return digest.hexdigest()


def _go_on(is_stopped: Callable[[], bool]) -> None:
    if is_stopped():
        raise StoppedError
