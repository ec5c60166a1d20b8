"""Decides what a model's name on the command line means: a path or a model on the hub (docs/models.md has all forms).

An alias has precedence over an existing file of that name, and that over a repository. What is none of these may be a
model of Ollama's without the prefix `ollama:`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from urllib.parse import parse_qs, unquote

from specrun.catalog import embedded, here
from specrun.catalog.entries import Entry, catalog
from specrun.catalog.file_names import is_safe_path, is_safe_repo, shards
from specrun.catalog.hub import HubName, address, endpoint
from specrun.display_text import near
from specrun.errors import MissingModelError, UsageError
from specrun.locations import pasted, user_path

_PATH_STARTS = (".", "~")  # a name that starts like this is a path, even if there is no such file
_ADDRESS = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/", re.IGNORECASE)
_PAGES = ("blob", "resolve", "raw", "tree")  # of a file or a folder, before the revision
_NEWEST, _ANY = "main", "latest"  # the revision, and Ollama's tag, that a name without one means


def parse(name: str) -> Path | HubName:
    """What `name` means. Raises UsageError if it is neither a path nor a repository nor an alias of the catalog, and
    MissingModelError for a model that Ollama does not have. Blanks and quotes around a name that was pasted are no part
    of it.
    """
    name = pasted(name)
    short, revision = _without_address(name)
    if revision and not is_safe_path(revision):
        raise UsageError(f"{name!r} names a revision that cannot be one; give org/repo/file.gguf")
    meaning = _meaning(short)
    if isinstance(meaning, Path):
        return meaning
    return replace(meaning, name=name, revision=revision or meaning.revision)


def _meaning(name: str) -> Path | HubName:
    entries = catalog()
    if embedded.is_meant(name):
        return embedded.TARGET
    head, _, tag = name.partition(":")
    quantization = None if tag.lower() in ("", _ANY) else tag
    if entry := entries.get(head.lower()):
        if quantization and quantization.lower() != entry.quantization.lower():
            return HubName(name, entry.repo, entry.revision, None, quantization, entry)
        return of_entry(entry)
    if here.is_of_ollama(name):
        if model := here.of_ollama(name):
            return model.path
        short = name.partition(":")[2].removeprefix("//")
        raise MissingModelError(f"Ollama has no model {short!r} on this machine; `ollama pull {short}` fetches it")
    if is_safe_repo(head) and tag.lower().endswith(".gguf") and not Path(name).is_file():
        name = f"{head}/{tag}"  # Ollama takes a file's name for a tag
    if _is_path(name):
        return user_path(name)
    if "://" in name:
        raise UsageError(f"{name!r} is no model on {address()}; fetch the file yourself and give its path")
    if name.lower().endswith(".gguf"):
        org, repo, file = name.split("/", 2)
        if not is_safe_path(name):
            raise UsageError(f"{name!r} is no file of a repository; give org/repo/file.gguf, or ./ and a path")
        first = shards(file)[0]
        entry = next((e for e in entries.values() if (e.repo, e.file) == (f"{org}/{repo}", first)), None)
        return HubName(name, f"{org}/{repo}", entry.revision if entry else None, first, None, entry)
    if is_safe_repo(head):
        entry = next((e for e in entries.values() if e.repo == head), None)
        return HubName(name, head, entry.revision if entry else None, None, quantization, entry)
    if model := here.of_ollama(name):
        return model.path
    if name and Path(name).is_dir():
        return Path(name)  # whose reader says which file in it to name
    advice = "give a path, an alias of `specrun models list`, or org/repo:QUANT"
    if suggestions := near(head, list(entries)):
        advice = f"did you mean {' or '.join(suggestions)}? `specrun models list` shows all"
    raise UsageError(f"no model is called {name!r}; {advice}")


def _without_address(name: str) -> tuple[str, str | None]:
    """A name without the address of the hub, as a browser, Ollama or the hub's client have it, and the revision in the
    address; None for the newest. A folder is taken for a tag, because folders are named by quantizations.
    """
    found = _ADDRESS.match(name)
    if not found and "://" in name:
        found = re.match(re.escape(f"{endpoint()}/"), name)  # of a mirror
    if not found:
        return name, None
    path, _, query = name[found.end() :].partition("#")[0].partition("?")
    parts = [unquote(part) for part in path.strip("/").split("/")]
    short, page, below, revision = "/".join(parts[:2]), "".join(parts[2:3]), parts[2:], ""
    if page in _PAGES:
        revision, below = "".join(parts[3:4]), parts[4:]
    below = below or parse_qs(query).get("show_file_info", [])[:1]  # what the hub shows of a file beside a repository
    if below and below[-1].lower().endswith(".gguf"):
        short = "/".join([short, *below])
    elif below and page == "tree":
        short += f":{below[-1]}"
    return short, revision if revision not in ("", _NEWEST) else None


def _is_path(name: str) -> bool:
    if Path(name).is_absolute() or name.startswith(_PATH_STARTS) or Path(name).is_file():
        return True
    if PureWindowsPath(name).drive or "\\" in name:  # as Windows writes paths; none of them is a repository's name
        return True
    return name.lower().endswith(".gguf") and name.count("/") < 2


def of_entry(entry: Entry) -> HubName:
    """The name of a catalog's model in the quantization of its entry."""
    return HubName(entry.alias, entry.repo, entry.revision, entry.file, None, entry)
