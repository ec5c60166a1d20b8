"""Which names may become parts of paths. They come from catalogs, hubs and users, and none may leave the cache."""

from __future__ import annotations

import re

_NAME = re.compile(r"[\w-][\w.+=@-]*", re.ASCII)
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\\]")
_LONGEST = 255  # bytes of a file name, in all usual file systems


def is_safe_name(text: str) -> bool:
    """Whether `text` names a commit or a blob: letters, digits and some signs, without a separator."""
    return bool(_NAME.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_repo(text: str) -> bool:
    """Whether `text` is ORG/NAME."""
    return bool(_REPO.fullmatch(text)) and len(text) <= _LONGEST


def is_safe_path(text: str) -> bool:
    """Whether `text` is a path inside of a folder: relative, and without `..`."""
    parts = text.split("/")
    return not _NOT_IN_PATHS.search(text) and all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= _LONGEST for part in parts
    )
