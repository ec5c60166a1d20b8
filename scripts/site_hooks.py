"""What mkdocs.yml calls while the site is built: pages that are made from other files.

index.md is README, changes.md is CHANGELOG, contributing.md is CONTRIBUTING, commands-reference.md comes from the
command line. Links between them are turned so that they work on the site as they do in the repository. The search
weighs pages.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT))

import reference  # noqa: E402 - it lies beside this file

# Files of the repository that are pages of the site.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
# The beginning of a page's path -> the weight of what the search finds in it. Options come first; what was measured and
# decided comes last, which has every word that someone may look for.
WEIGHTS = {
    "options.md": 2000,
    "first-ten-minutes.md": 10,
    "commands.md": 5,
    "commands-reference.md": 0.5,
    "benchmarks/": 0.3,
    "adr/": 0.1,
    "changes.md": 0.1,
    "contributing.md": 0.1,
}
_TARGET = re.compile(r"""(\]\(|srcset="|src=")([^)"\s]+)""")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_from_the_root(text)))
    files.append(File.generated(config, "commands-reference.md", content=reference.markdown()))
    return files


def on_page_markdown(_markdown: str, page: Page, **_other: Any) -> None:
    """Give what the search finds in a page its weight."""
    for beginning, weight in WEIGHTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta["search"] = {"boost": weight}


def _from_the_root(text: str) -> str:
    """A page of the repository's root as a page of the site."""
    return _TARGET.sub(lambda match: match[1] + _moved(match[2]), text)


def _moved(target: str) -> str:
    path, mark, anchor = target.partition("#")
    return PAGES.get(path, path.removeprefix("docs/")) + mark + anchor
