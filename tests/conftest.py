"""What all tests share: models made once, an environment without the user's files, and the command itself."""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub.constants
import pytest
import typer.main

from specrun.catalog import embedded
from specrun.cli import main
from specrun.llama_settings import LlamaSettings
from tests.hub import Hub, serve
from tests.models import random_llama, scripted_llama
from tests.waiting import TIMEOUT_S

if TYPE_CHECKING:
    import pexpect

# What `script` writes, a token each; the é is split over two tokens.
SCRIPT = [b"one", b" two", b" \xc3", b"\xa9", b" end"]
SCRIPT_TEXT = "one two é end"

# Each use of the first is a process that imports everything; the second is a whole run of `specrun tune`; the third is
# the embedded target, widened by a script and quantized.
_SLOW_FIXTURES = {"specrun", "tuned", "k_quant"}
ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HOME = Path.home()
_COMMANDS_WITH_THREADS = ("generate", "chat", "serve", "tune", "verify")
_MANY = 500  # tests, of which some load models


def pytest_configure(config: pytest.Config) -> None:
    """Make Ctrl-C work in every child process, and give each of several test processes a core of its own."""
    # A shell that starts a job in the background ignores SIGINT in it, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all tests are known: what is made until then stays, and is looked through for nothing
    worker = getattr(config, "workerinput", None)
    if worker and hasattr(os, "sched_setaffinity"):
        # llama.cpp's threads wait for each other at every operation, so two teams on the same cores are many times
        # slower than one after the other. On one core, llama.cpp takes one thread unless told otherwise.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker["workerid"].removeprefix("gw")) % len(cores)]})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests as slow that use a slow fixture; others are marked where they are.

    Files with many slow tests come first: each of several test processes takes the next file, and none may begin with a
    long one when the others are at their end.
    """
    n_slow = Counter[Path]()
    for item in items:
        if _SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        n_slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: -n_slow[item.path])


def pytest_collection_finish() -> None:
    """From now on, look for garbage among what tests make."""
    gc.freeze()
    gc.enable()


@cache
def _why_not_reordered() -> str | None:
    """The product's own check, which no folder of facts remembers: tests that use it have one of their own."""
    from specrun.llama.facts.relied_on import REORDERED

    return REORDERED.check(LlamaSettings())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests marked `reordered` on a build that does not compute with re-ordered weights."""
    if item.get_closest_marker("reordered") and (why := _why_not_reordered()):
        pytest.skip(f"re-ordered weights do not work on this build: {why}")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or changes the user's profiles, settings, models or environment."""
    _isolate(monkeypatch, tmp_path)


@pytest.fixture(scope="session", autouse=True)
def _isolated_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nor does a fixture of a module or of all tests, which is made before `isolated` of the first of them."""
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, tmp_path_factory.mktemp("shared"))
        yield


def _isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep to this folder what specrun and the hub's client keep."""
    for name in (
        "SPECRUN_TARGET",
        "SPECRUN_DRAFT",
        "SPECRUN_API_KEY",
        "NO_COLOR",
        "FORCE_COLOR",
        "COLUMNS",
        "PYTHONUNBUFFERED",
    ):
        patch.delenv(name, raising=False)
    patch.setenv("SPECRUN_DATA_DIR", str(folder / "data"))
    patch.setenv("SPECRUN_CONFIG_DIR", str(folder / "config"))
    patch.setenv("SPECRUN_CACHE_DIR", str(folder / "cache"))
    _set_home(patch, folder / "home")
    _set_hub(patch, "http://127.0.0.1:9", folder / "huggingface")  # where nobody listens
    patch.setenv("TERM", "xterm-256color")
    # A test does not answer when prompt_toolkit asks the terminal where its cursor is.
    patch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")


def _set_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """A home without the models of other programs. Caches and settings of libraries stay where they are."""
    for name, folder in (("CACHE", ".cache"), ("CONFIG", ".config"), ("DATA", ".local/share")):
        monkeypatch.setenv(f"XDG_{name}_HOME", os.environ.get(f"XDG_{name}_HOME") or str(_HOME / folder))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    monkeypatch.setenv("LLAMA_CACHE", str(home / "llama.cpp"))


def _set_hub(monkeypatch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """For processes that are started, and for this one, where the hub's client has read its environment already."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    environment = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub without repositories, and an empty cache."""
    with serve() as hub:
        _set_hub(monkeypatch, hub.url, tmp_path / "huggingface")
        # Nothing is encrypted, and a client that reads all certificates of the system takes longer than most tests.
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "certificates"))
        yield hub
        huggingface_hub.close_session()


@pytest.fixture(scope="session")
def demo_target() -> Path:
    """The embedded target."""
    return embedded.TARGET


@pytest.fixture(scope="session")
def demo_draft() -> Path:
    """The embedded draft."""
    return embedded.DRAFT


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for models that several tests use."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def random_model(made: Path) -> Path:
    """A llama with random weights that never ends its text."""
    return random_llama(made / "random.gguf")


@pytest.fixture(scope="session")
def script(made: Path) -> Path:
    """A model that answers everything with SCRIPT_TEXT."""
    return scripted_llama(made / "script.gguf", SCRIPT)


@pytest.fixture(scope="session")
def endless(made: Path) -> Path:
    """A model that repeats "la lo " for as long as its 16,384 tokens of context last: many seconds."""
    return scripted_llama(made / "endless.gguf", [b"la ", b"lo "], repeat=True, n_ctx=16384)


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    def assert_fails(self, code: int, *parts: str) -> None:
        """It failed as it should: nothing on stdout, one line on stderr that has all the `parts`."""
        assert (self.code, self.stdout) == (code, ""), self
        assert self.stderr.startswith("specrun: "), self
        assert self.stderr.count("\n") == 1, self
        assert all(part in self.stderr for part in parts), self


class Specrun:
    """The `specrun` command, in a process of its own and with one thread."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"", **environment: str) -> Result:
        """Run it to its end."""
        process = self.start(*arguments, stdin=subprocess.PIPE, **environment)
        stdout, stderr = process.communicate(_encoded(stdin), timeout=TIMEOUT_S)
        return Result(process.returncode, stdout.decode(), stderr.decode())

    def start(
        self,
        *arguments: str | Path,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start it, with a pipe on stderr."""
        process = subprocess.Popen(
            self.command(*arguments),
            bufsize=0,
            env=os.environ | environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    @staticmethod
    def command(*arguments: str | Path) -> list[str]:
        """The command line."""
        one_thread = ["-t", "1"] if arguments and arguments[0] in _COMMANDS_WITH_THREADS else []
        return [sys.executable, "-m", "specrun", *map(str, arguments[:1]), *one_thread, *map(str, arguments[1:])]

    def on_terminal(self, *arguments: str | Path) -> pexpect.spawn[str]:
        """Start it on a terminal of 90 columns."""
        import pexpect

        command = self.command(*arguments)
        return pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=TIMEOUT_S, dimensions=(40, 90))


@pytest.fixture(scope="session")
def checked_facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a process keeps what it found out about this build of llama.cpp.

    Several test processes find it out together: every other one begins with the last fact, and each takes what is kept.
    """
    from specrun.llama.facts import relied_on

    worker = getattr(request.config, "workerinput", None)
    folder = tmp_path_factory.getbasetemp()
    data = (folder.parent if worker else folder) / "checked"
    backwards = worker and int(worker["workerid"].removeprefix("gw")) % 2
    known = relied_on._found
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECRUN_DATA_DIR", str(data))
        patch.setattr(relied_on, "_found", {})
        for fact in reversed(relied_on.FACTS) if backwards else relied_on.FACTS:
            relied_on.why_not(fact)
        known.update(relied_on._found)
    return data / "facts"


@pytest.fixture(scope="session", autouse=True)
def _checked_at_once(request: pytest.FixtureRequest) -> None:
    """Let each of several test processes know the facts before its first test, where many tests run."""
    if hasattr(request.config, "workerinput") and request.session.testscollected > _MANY:
        request.getfixturevalue("checked_facts")


@pytest.fixture
def known_facts(checked_facts: Path, tmp_path: Path) -> None:
    """Processes find llama.cpp checked, as on every machine after the first command: it takes seconds."""
    unfinished = shutil.ignore_patterns(".*")  # of another test process
    shutil.copytree(checked_facts, tmp_path / "data" / "facts", ignore=unfinished)


@pytest.fixture
def specrun(known_facts: None) -> Iterator[Specrun]:  # noqa: ARG001
    """The command, run in processes of its own. What a failed test leaves running is killed."""
    command = Specrun()
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
            process.wait()


# typer makes all commands with all their options anew each time it is called, which takes longer than many tests.
_commands = cache(typer.main.get_command)


class SpecrunHere:
    """The `specrun` command in this process: ten times faster, for what needs no pipe, signal or terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str | Path, stdin: str | bytes = b"", **environment: str) -> Result:
        """Run it to its end."""
        with self._monkeypatch.context() as patch:
            patch.setattr("typer.main.get_command", _commands)
            patch.setattr("sys.argv", ["specrun", *Specrun.command(*arguments)[3:]])
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(_encoded(stdin)), encoding="utf-8"))
            for name, value in environment.items():
                patch.setenv(name, value)
            handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
            with pytest.raises(SystemExit) as left:
                main()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        stdout, stderr = self._capfd.readouterr()
        return Result(int(left.value.code or 0), stdout, stderr)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> SpecrunHere:
    """The command, run in this process."""
    return SpecrunHere(monkeypatch, capfd)


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
