"""What mkdocs.yml calls while the site is built: pages that are made from other files.

index.md is README, changes.md is CHANGELOG, contributing.md is CONTRIBUTING, commands-reference.md comes from the
command line. Links between them are turned so that they work on the site as they do in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT))

import reference  # noqa: E402 - it lies beside this file

# Files of the repository that are pages of the site.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
_TARGET = re.compile(r"""(\]\(|srcset="|src=")([^)"\s]+)""")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_from_the_root(text)))
    files.append(File.generated(config, "commands-reference.md", content=reference.markdown()))
    return files


def _from_the_root(text: str) -> str:
    """A page of the repository's root as a page of the site."""
    return _TARGET.sub(lambda match: match[1] + _moved(match[2]), text)


def _moved(target: str) -> str:
    path, mark, anchor = target.partition("#")
    return PAGES.get(path, path.removeprefix("docs/")) + mark + anchor
