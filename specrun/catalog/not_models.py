"""What files hold that people name as models, and that are none: said in a clause each, with what to do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specrun.display_text import one_line

GET_GGUF = (
    "specrun runs GGUF files: look for a repository on the hub whose name ends with -GGUF, or convert the model with "
    "llama.cpp's convert_hf_to_gguf.py"
)
_PROJECTOR = "a projector (mmproj), which turns pictures or sound into input of a model; name that model's own file"
_CONTROL = "a control vector, which specrun does not apply; name the model that it was made for"
# By `general.type`, as llama.cpp's converter and tools write it.
_TYPES = {
    "adapter": "a LoRA adapter, which specrun does not apply; name its model, or merge both with llama-export-lora",
    "imatrix": "an importance matrix, which is for quantizing a model; name the model's own file",
    "mmproj": _PROJECTOR,
}
# By `general.architecture`: older projectors are of no other type, and control vectors of none at all.
_ARCHITECTURES = {"clip": _PROJECTOR, "controlvector": _CONTROL}

_POINTER = b"version https://git-lfs"
_PAGE = re.compile(rb"\s*(<!--((?!-->).)*-->\s*)*<(!doctype html|html)", re.IGNORECASE | re.DOTALL)
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla, in the order of their bytes
LOOKED_AT = 512  # bytes of a file that is no GGUF
_QUOTED = 60  # characters of it in a message


def kind_of(metadata: Mapping[str, Any]) -> str | None:
    """What a GGUF file holds that is no model, and what to do; None for a model."""
    for key, kinds in (("general.type", _TYPES), ("general.architecture", _ARCHITECTURES)):
        value = metadata.get(key)
        if isinstance(value, str) and value in kinds:
            return kinds[value]
    return None


def about_data(beginning: bytes) -> str:
    """What a file is that is no GGUF file, and what to do, as the end of a sentence. beginning: LOOKED_AT bytes."""
    if beginning.startswith(_POINTER):
        return " but a Git LFS pointer, which stands for one; `git lfs pull` or `specrun pull` fetches the file itself"
    if _PAGE.match(beginning):
        return " but a web page; download the file itself, whose address on the hub has /resolve/ in place of /blob/"
    if beginning.startswith(_OLD_MAGICS):
        return f" but of an older format, which llama.cpp no longer reads; {GET_GGUF}"
    if not any(beginning):
        return " but begins with zeros, as an unfinished download does; download it again"
    if text := _text(beginning):
        return f" but a text that begins with {text!r}; check the path, or download it again"
    return f"; {GET_GGUF}"


def about_folder(folder: Path) -> str:
    """What to say of a folder that was given as a model."""
    files = sorted(folder.glob("*.gguf"))
    if not files and next(folder.glob("*.safetensors"), None):
        return f"{folder} has the model in another format; {GET_GGUF}"
    example = f", such as {files[0]}" if files else ""
    return f"{folder} is a folder; give a .gguf file{example}"


def _text(data: bytes) -> str | None:
    """The first line of a text; None for anything else. A character may be cut off at its end."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode("utf-8")
    text = " ".join(text.split())
    return one_line(text[:_QUOTED]) if text.isprintable() else None
