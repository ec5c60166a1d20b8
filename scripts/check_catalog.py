"""Compare models.toml with the hub: repository, files, size, licence, architecture and context of each model.

    python scripts/check_catalog.py [ALIAS ...]

Prints a line for each model, and fails if one differs. Needs the network.
"""

from __future__ import annotations

import sys

from specrun.catalog.cache import Progress, look_up
from specrun.catalog.entries import Entry, catalog
from specrun.catalog.names import of_entry
from specrun.display_text import one_line, size_text
from specrun.errors import HubError, NoHubError


def compared(entry: Entry) -> tuple[list[str], str]:
    """How an entry differs from the hub, and what is there. Raises HubError if the hub cannot be asked."""
    try:
        remote = look_up(of_entry(entry), Progress())
    except HubError as error:
        if isinstance(error, NoHubError) or error.wait_s is not None:
            raise
        return [str(error)], ""
    pairs = [
        ("revision", entry.revision, remote.revision),
        ("size in bytes", entry.bytes, remote.bytes),
        ("licence", entry.licence, remote.licence),
        ("architecture", entry.architecture, remote.architecture),
        ("context", entry.context, remote.context),
    ]
    differences = [
        f"{name} is {on_hub} on the hub, {in_catalog} in the catalog"
        for name, in_catalog, on_hub in pairs
        if in_catalog is not None and on_hub is not None and in_catalog != on_hub
    ]
    return differences, f"{size_text(remote.bytes)} at revision {remote.commit}"


def main(aliases: list[str]) -> None:
    entries, wrong = catalog(), 0
    if unknown := [alias for alias in aliases if alias not in entries]:
        raise SystemExit(f"not in models.toml: {', '.join(unknown)}")
    for alias in aliases or entries:
        differences, there = compared(entries[alias])
        wrong += bool(differences)
        text = f"differs: {'; '.join(differences)}" if differences else f"ok, {there}"
        print(f"{alias}: {one_line(text)}", flush=True)
    if wrong:
        raise SystemExit(f"{wrong} of {len(aliases or entries)} differ from the hub; correct them in models.toml")


if __name__ == "__main__":
    main(sys.argv[1:])
