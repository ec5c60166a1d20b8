"""The training text: source files of the running Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Installed packages, generated tables and files that are broken on purpose.
SKIPPED_DIRECTORIES = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data", "unicodedata", "bad_coding", "data"}
)
TEST_DIRECTORIES = frozenset({"test", "tests", "idle_test"})
HELD_OUT_ONE_IN = 16
LARGEST_FILE_BYTES = 400_000


@dataclass(frozen=True)
class Document:
    """One source file: its path below the library folder, its text and its role."""

    path: str
    text: str
    role: str  # "library", "test" or "held-out"


def read_corpus() -> list[Document]:
    """Return the library's files in path order, without repeated texts."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents: list[Document] = []
    seen: set[bytes] = set()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_DIRECTORIES.intersection(relative.parts) or relative.parts[0].startswith("config-"):
            continue
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).digest()
        text = decode(raw)
        if text is None or not text.strip() or len(raw) > LARGEST_FILE_BYTES or digest in seen:
            continue
        seen.add(digest)
        documents.append(Document(relative.as_posix(), text, role_of(relative)))
    return documents


def decode(raw: bytes) -> str | None:
    """Decode UTF-8 with plain newlines; None for a file in another encoding."""
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def role_of(relative: Path) -> str:
    """Say what a file is for. The held-out choice depends on the path alone, so it is the same on every machine."""
    if TEST_DIRECTORIES.intersection(relative.parts[:-1]):
        return "test"
    digest = hashlib.sha256(relative.as_posix().encode()).digest()
    return "held-out" if int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0 else "library"
