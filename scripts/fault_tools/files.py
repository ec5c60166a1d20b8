"""Damaged files: those of specrun are set aside, named and made again; those that the user named are an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault_tools.injecting import KEEPING, PROMPT, TARGET, Ended, Extent, Fault, Injection, Injections, Place

_LEARN = ("generate", PROMPT, "--raw", "-n", "48")
_EXACT = ("generate", PROMPT, "--raw", "-n", "8", "--no-learn", "--exact")


def damaged(content: bytes) -> Iterator[bytes]:
    """What may have become of a file: cut short, emptied, overwritten, another file, bits that changed."""
    for share in (0.0, 0.1, 0.5, 0.9):
        yield content[: int(share * len(content))]
    yield content[:-1]
    yield bytes(len(content))
    yield b"\xff\xfe\x00garbage" * 20
    yield b"[1, 2, 3]"
    yield b'{"version": 3}'
    yield b"null"
    yield b"[" * 100_000
    for i in range(0, len(content), max(len(content) // 6, 1)):
        yield content[:i] + bytes([content[i] ^ 0x55]) + content[i + 1 :]


def own(
    find: Callable[[Place], list[Path]], use: Callable[[Place], Ended], is_named: bool, place: Place, _extent: Extent
) -> Injections:
    """A file that specrun keeps for itself. is_named: whether the user is told; what only saves time is made again."""
    first = use(place)
    (path,) = find(place)
    whole = path.read_bytes()
    yield from first.unless_good()
    for content in damaged(whole):
        path.write_bytes(content)
        run = use(place)
        aside = path.with_name(f"{path.name}.damaged")
        was_noticed = aside.exists()
        lost = ""
        if was_noticed and aside.read_bytes() != content:
            lost = "what was set aside is not what was there"
        elif is_named and was_noticed and str(path) not in run.stderr:
            lost = "a file was set aside that was not named"
        aside.unlink(missing_ok=True)
        again = use(place)
        problem = run.problem({0}) or again.problem({0}) or lost
        if not problem and aside.exists():
            problem = "it was not made again"
        yield Injection(run.code, problem or place.leftovers())
        path.write_bytes(whole)


def prompts(place: Place, _extent: Extent) -> Injections:
    """A prompt that was read: it is read again, and kept again, and the text is the same."""
    first = place.run(*KEEPING)
    (path,) = place.kept_prompts()
    whole = path.read_bytes()
    yield from first.unless_good()
    for content in damaged(whole):
        path.write_bytes(content)
        run = place.run(*KEEPING)
        lost = "" if run.stdout == first.stdout else "the text"
        if not lost and (not path.exists() or path.stat().st_size + 1000 < len(whole)):
            lost = "it was not made again"
        yield run.injection({0}, lost=lost or place.leftovers())


def conversations(place: Place, _extent: Extent) -> Injections:
    """The last conversation, with --continue."""
    path = place.data / "chats" / "conversation-1.json"
    path.parent.mkdir()
    whole = json.dumps(
        {"target": None, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    ).encode()
    for content in damaged(whole):
        path.write_bytes(content)
        aside = path.with_name(f"{path.name}.damaged")
        run = place.run("chat", "-m", "embedded", "--continue", "--speculate", "off", "--no-learn", stdin=b"/exit\n")
        lost = ""
        if run.code and (not aside.exists() or aside.read_bytes() != content or str(aside) not in run.stderr):
            lost = f"it was not set aside: {run.stderr}"
        aside.unlink(missing_ok=True)
        yield run.injection({0, 1}, lost=lost)


def saved(place: Place, _extent: Extent) -> Injections:
    """A conversation that the user named: one line that names it, and it stays as it is."""
    path = place.work / "file"
    path.write_text(json.dumps({"target": None, "messages": [{"role": "user", "content": "a"}]}))
    command = ("chat", "-m", "embedded", "--speculate", "off", "--no-learn")
    for content in damaged(path.read_bytes()):
        original = path.read_bytes()
        path.write_bytes(content)
        run = place.run(*command, stdin=f"/load {path}\n".encode())
        named_it = run.code == 0 or str(path) in run.stderr
        lost = "" if named_it else f"the file is not named: {run.stderr}"
        if path.read_bytes() != content:
            lost = "the user's own file was changed"
        path.write_bytes(original)
        yield run.injection({0, 1}, lost=lost)


def configuration(place: Place, _extent: Extent) -> Injections:
    """The user's models.toml."""
    path = place.config / "models.toml"
    whole = b'[models."mine"]\nrepo = "org/name"\nfile = "name-q8_0.gguf"\n'
    for content in damaged(whole):
        path.write_bytes(content)
        run = place.run("models", "list")
        named_it = run.code == 0 or str(path) in run.stderr
        lost = "" if named_it and path.read_bytes() == content else f"the file is not named: {run.stderr}"
        yield run.injection({0, 2}, lost=lost)


def typed(place: Place, _extent: Extent) -> Injections:
    """The lines that were typed in chats, which only a chat on a terminal reads; here through the class that does."""
    from specrun.chat.reader import TypedHistory

    path = place.data / "chats" / "typed.jsonl"
    path.parent.mkdir()
    for content in damaged(b'"one"\n"two"\n'):
        path.write_bytes(content)
        try:
            history = TypedHistory(path)
            history.store_string("three")
            last = next(iter(history.load_history_strings()), "")
        except Exception as error:
            yield Injection(1, f"{type(error).__name__}: {error}")
        else:
            yield Injection(0, "" if last == "three" else "a message")


def models(place: Place, _extent: Extent) -> Injections:
    """A model file that is cut short; other damage is what the cases of hostile input are for."""
    content = TARGET.read_bytes()
    path = place.work / "model.gguf"
    for share in (0.0, 1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(content[: int(share * len(content))])
        run = place.run("generate", PROMPT, "-m", path, "-n", "8")
        yield run.injection({3}, str(path))


def no_models(place: Place, _extent: Extent) -> Injections:
    """Files that hold no model, named as target, as draft, and in a chat, which goes on with the model before."""
    from tests import foreign_files

    path = place.work / "file.gguf"
    for kind in (*foreign_files.GGUFS, *foreign_files.OTHERS):
        if kind in foreign_files.GGUFS:
            foreign_files.GGUFS[kind](path)
        else:
            path.write_bytes(foreign_files.OTHERS[kind])
        for models in (("-m", path), ("-m", TARGET, "--draft", path)):
            run = place.run("generate", PROMPT, *models, "-n", "2")
            yield run.injection({3}, str(path))
        run = place.run("chat", "-m", TARGET, "-n", "2", "--no-learn", stdin=f"/model {path}\nx\n".encode())
        yield run.injection({3}, str(path), lost="" if run.stdout.strip() else "the model before")


def _run(*command: object) -> Callable[[Place], Ended]:
    return lambda place: place.run(*command)


def _tuned(place: Place) -> Ended:
    """A run with a tuned profile: what another run learned, given out as tuned."""
    if not (place.data / "profiles").exists():
        place.run(*_LEARN)
        (learned,) = place.data.glob("profiles/learned/*.json")
        value = json.loads(learned.read_text())["value"] | {"origin": "tuned"}
        (place.work / "tuned.json").write_text(json.dumps(value))
    if not list(place.data.glob("profiles/*.json")):
        place.run("tune", "--import", place.work / "tuned.json")
        return place.run("tune", "--show")
    return place.run(*_LEARN)


def _glob(pattern: str) -> Callable[[Place], list[Path]]:
    return lambda place: sorted([*place.data.glob(pattern), *place.cache.glob(pattern)])


FAULTS = [
    Fault("damaged: a tuned profile", partial(own, _glob("profiles/*.json"), _tuned, True)),
    Fault("damaged: what runs learned", partial(own, _glob("profiles/learned/*.json"), _run(*_LEARN), True)),
    Fault("damaged: a fact about llama.cpp", partial(own, _glob("facts/*.json"), _run(*_LEARN, "--no-learn"), False)),
    Fault("damaged: sizes of exact passes", partial(own, _glob("exact/*.json"), _run(*_EXACT), False)),
    Fault("damaged: a prompt", prompts),
    Fault("damaged: the last conversation", conversations),
    Fault("damaged: lines typed in chats", typed),
    Fault("damaged: models.toml", configuration),
    Fault("damaged: a conversation (/load)", saved),
    Fault("damaged: a model that is cut short", models),
    Fault("files that hold no model", no_models),
]
