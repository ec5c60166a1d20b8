"""Which specrun this is: its version and, where it is known, the commit."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path

import specrun

_DIGITS = 10  # of a commit's hash
_GIT_SECONDS = 5  # after which a slow disk is not worth waiting for


def text() -> str:
    """The version, and in parentheses the commit; `changed` where files differ from it."""
    commit = _installed_commit() or _checkout_commit(Path(specrun.__file__).parents[1])
    return f"{specrun.__version__} ({commit})" if commit else specrun.__version__


def _installed_commit() -> str | None:
    """The commit that pip installed from a git address, or None."""
    try:
        origin = metadata.distribution("specrun").read_text("direct_url.json")
        return str(json.loads(origin or "{}")["vcs_info"]["commit_id"])[:_DIGITS]
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return None


def _checkout_commit(root: Path) -> str | None:
    """The commit of the clone that this package lies in, or None."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", f"--short={_DIGITS}", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}, changed" if commit and changes else commit


def _git(root: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(root), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
