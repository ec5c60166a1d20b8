"""Compares the entries of the catalog with the hub."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog.entries import Entry
from specrun.catalog.hub.look_up import look_up
from specrun.catalog.names import of_entry
from specrun.display_text import size_text
from specrun.errors import HubError, NoHubError


@dataclass(frozen=True)
class Checked:
    """The result of comparing one entry with the hub."""

    alias: str
    differences: tuple[str, ...]  # one sentence each; empty if the entry agrees with the hub
    commit: str | None = None  # of the entry's revision; None if the model was not found
    bytes: int | None = None  # of all files of the model on the hub

    @property
    def text(self) -> str:
        """One line for people."""
        if self.differences:
            return "differs: " + "; ".join(self.differences)
        return f"ok, {size_text(self.bytes or 0)} at revision {self.commit}"

    def as_json(self) -> dict[str, Any]:
        """The fields and `ok`, as JSON values."""
        return asdict(self) | {"ok": not self.differences}


def check(entry: Entry) -> Checked:
    """Look the entry up on the hub. Raises HubError only if the hub cannot be reached."""
    try:
        remote = look_up(of_entry(entry))
    except NoHubError:
        raise
    except HubError as error:
        if error.wait_s is not None:
            raise
        return Checked(entry.alias, (str(error),))
    compared = [
        ("revision", entry.revision, remote.revision),
        ("size in bytes", entry.bytes, remote.bytes),
        ("licence", entry.licence, remote.licence),
        ("architecture", entry.architecture, remote.architecture),
        ("context", entry.context, remote.context),
    ]
    differences = tuple(
        f"{name} is {on_hub} on the hub, {in_catalog} in the catalog"
        for name, in_catalog, on_hub in compared
        if in_catalog is not None and on_hub is not None and in_catalog != on_hub
    )
    return Checked(entry.alias, differences, remote.commit, remote.bytes)
