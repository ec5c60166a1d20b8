"""Two and more processes at once that save the same thing: what is there afterwards is what one of them saved."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from functools import partial
from pathlib import Path

from fault_tools.injecting import KEEPING, PROMPT, TARGET, Ended, Extent, Fault, Injection, Injections, Place, ended
from tests.hub import serve

_N = 4  # processes at once
_LEARN = ("generate", PROMPT, "--raw", "-n", "48")


def at_once(place: Place, n: int, *command: object, **environment: str) -> list[Ended]:
    """Start a command several times, and wait for all."""
    started = time.monotonic()
    processes = [place.start(*command, environment=environment, stdin=subprocess.PIPE) for _ in range(n)]
    return [ended(process, started) for process in processes]


def saving(command: tuple[object, ...], pattern: str, place: Place, extent: Extent) -> Injections:
    """A command whose file all processes write."""
    for _ in range(extent.moments):
        runs = at_once(place, _N, *command)
        files = list(place.data.glob(pattern))
        lost = place.leftovers() or ("" if len(files) == 1 else f"{len(files)} files instead of one")
        again = place.run(*command)
        lost = lost or again.problem({0}) or ("then: " + again.stderr if "damaged" in again.stderr else "")
        for run in runs:
            yield run.injection({0}, lost=lost)


def importing(place: Place, extent: Extent) -> Injections:
    """The same profile, saved by all."""
    place.run(*_LEARN)
    (learned,) = place.data.glob("profiles/learned/*.json")
    value = json.loads(learned.read_text())["value"] | {"origin": "tuned"}
    (place.work / "tuned.json").write_text(json.dumps(value))
    return saving(("tune", "--import", "tuned.json"), "profiles/*.json", place, extent)


def downloading(place: Place, extent: Extent) -> Injections:
    """The same model: one fetches it, the others wait and take it."""
    content = TARGET.read_bytes() * 8
    with serve() as hub:
        hub.add("org/model-gguf", {"model-q8_0.gguf": content})
        for _ in range(extent.moments):
            runs = at_once(place, _N, "pull", "org/model-gguf/model-q8_0.gguf", HF_ENDPOINT=hub.url)
            (path,) = place.hub.rglob("snapshots/*/*.gguf")
            same = hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content).digest()
            n_sent = len(hub.ranges())
            hub.requests.clear()
            lost = "" if same else "the model"
            lost = lost or ("" if n_sent == 1 else f"it was fetched {n_sent} times")
            for run in runs:
                yield run.injection({0}, lost=lost)
            place.empty()


def prompts(place: Place, extent: Extent) -> Injections:
    """The same prompt, kept by all and taken up by all, while another one is kept, too."""
    first = place.run(*KEEPING, "--no-prompt-cache")
    yield from first.unless_good()
    for i in range(extent.moments):
        runs = at_once(place, _N, *KEEPING)
        lost = place.leftovers() or ("" if len(place.kept_prompts()) == 1 else f"{len(place.kept_prompts())} files")
        for run in runs:
            yield run.injection({0}, lost="the text" if run.stdout != first.stdout else lost)
        if i % 2:
            place.run("doctor", "--forget-prompts")


def widening(place: Place, _extent: Extent) -> Injections:
    """The pair of `specrun demo`, made by two processes. They are stopped while they write with it."""
    started = time.monotonic()
    processes = [place.start("demo", stderr=subprocess.PIPE) for _ in range(2)]
    while time.monotonic() < started + 90 and len(list(place.cache.glob("demo/*.gguf"))) < 2:
        time.sleep(0.1)
    time.sleep(2)
    for process in processes:
        process.terminate()
    runs = [ended(process, started) for process in processes]
    paths = list(place.cache.glob("demo/*"))
    lost = "" if len(paths) == 2 and all(_is_whole(path, place) for path in paths) else f"the pair: {paths}"
    for run in runs:
        yield run.injection({0, 143}, lost=lost)


def _is_whole(path: Path, place: Place) -> bool:
    return place.run("generate", PROMPT, "--raw", "-n", "1", "-m", path, "--draft", "none", "--no-learn").code == 0


def making(place: Place, _extent: Extent) -> Injections:
    """The draft of one target, made by two processes."""
    runs = at_once(place, 2, "models", "make-draft", "--types", "q4_0", "--keep-layers", "0.5")
    again = place.run("generate", PROMPT, "--raw", "-n", "8", "--no-learn")
    n_drafts = len(list(place.data.glob("drafts/*/*.gguf")))
    lost = again.problem({0}) or place.leftovers() or ("" if n_drafts == 1 else f"{n_drafts} drafts")
    for run in runs:
        yield run.injection({0}, lost=lost)


def conversations(place: Place, _extent: Extent) -> Injections:
    """Threads of one program that save the same file, as two models in one program do."""
    program = """
import sys, threading
from pathlib import Path
from specrun.chat.conversation_file import LastConversation, read, save
path = Path(sys.argv[1])
def save_often(text):
    for _ in range(50):
        save(path, LastConversation(None, [{"role": "user", "content": text * 10000}]))
        assert len(read(path).messages) == 1
threads = [threading.Thread(target=save_often, args=(text,)) for text in "abcd"]
failures = []
threading.excepthook = failures.append
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(len(failures))
"""
    done = subprocess.run(
        [place.command[0], "-c", program, str(place.work / "chat.json")],
        env=place.environment(),
        capture_output=True,
        check=False,
    )
    lost = "" if done.returncode == 0 else done.stderr.decode()[-300:] or "a save"
    yield Injection(done.returncode, lost or place.leftovers())


FAULTS = [
    Fault("at once: what runs learned", partial(saving, _LEARN, "profiles/learned/*.json")),
    Fault("at once: a profile", importing),
    Fault("at once: a download", downloading),
    Fault("at once: a prompt", prompts),
    Fault("at once: the wide pair", widening),
    Fault("at once: a made draft", making),
    Fault("at once: threads that save a conversation", conversations),
]
