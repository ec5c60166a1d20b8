"""Whether an entry of the catalog says what the hub says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specrun.catalog import hub
from specrun.catalog.entries import Entry
from specrun.catalog.names import HubName
from specrun.errors import HubError
from specrun.units import size_text


@dataclass(frozen=True)
class Checked:
    """What the hub says of an entry. differences: in words, empty if there are none."""

    alias: str
    differences: tuple[str, ...]
    commit: str | None = None
    bytes: int | None = None

    @property
    def text(self) -> str:
        """For people, in one line."""
        if self.differences:
            return "differs: " + "; ".join(self.differences)
        return f"ok, {size_text(self.bytes or 0)} at revision {self.commit}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"ok": not self.differences}


def check(entry: Entry) -> Checked:
    """Ask the hub. Raises HubError only if it cannot be asked at all."""
    try:
        found = hub.look_up(HubName(entry.alias, entry.repo, entry.revision, entry.file, None, entry))
    except HubError as error:
        if error.wait_s is not None or hub.is_offline():
            raise
        return Checked(entry.alias, (str(error),))
    compared = [
        ("revision", entry.revision, found.revision),
        ("size in bytes", entry.bytes, found.bytes),
        ("licence", entry.licence, found.licence),
        ("architecture", entry.architecture, found.architecture),
        ("context", entry.context, found.context),
    ]
    differences = tuple(
        f"{what} is {there} on the hub, {here} in the catalog"
        for what, here, there in compared
        if here is not None and there is not None and here != there
    )
    return Checked(entry.alias, differences, found.commit, found.bytes)
