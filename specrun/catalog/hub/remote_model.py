"""What the hub tells of a model and its files."""

from __future__ import annotations

from dataclasses import dataclass

from specrun.catalog.hub.settings import address
from specrun.catalog.safe_names import is_safe_name, is_safe_path
from specrun.display_text import one_line
from specrun.errors import HubError


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub."""

    name: str
    bytes: int
    blob: str  # name of its blob in the cache
    sha256: str | None  # of the content, in hex; None if the hub does not give it

    def __post_init__(self) -> None:
        if not is_safe_path(self.name) or not is_safe_name(self.blob) or self.bytes < 0:
            raise HubError(f"{address()} lists a file that cannot be stored ({one_line(self.name)[:100]}); not fetched")


@dataclass(frozen=True)
class RemoteModel:
    """A model on the hub. What it names stays inside of the cache's folder for its repository."""

    name: str  # as the user named it
    repo: str
    revision: str  # branch, tag or commit that was looked up
    commit: str  # that `revision` is now
    files: tuple[RemoteFile, ...]  # all shards, in order
    licence: str | None
    architecture: str | None  # None if the hub has not read the GGUF file
    context: int | None  # in tokens; None if the hub has not read the GGUF file

    def __post_init__(self) -> None:
        if not (is_safe_path(self.repo) and is_safe_path(self.revision) and is_safe_name(self.commit)):
            commit = one_line(self.commit)[:100]
            raise HubError(f"{address()} names a commit that cannot be one ({commit}); check HF_ENDPOINT")

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files)
