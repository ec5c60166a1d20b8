"""A place to run specrun in, runs of it in child processes, and what must not happen to any of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "specrun" / "embedded"
TARGET, DRAFT = EMBEDDED / "target.gguf", EMBEDDED / "draft.gguf"
PATIENCE_S = 120.0  # nothing here takes a quarter of it, so what takes longer hangs
PROMPT = "def read_config(path):\n"
# Reads a prompt of some 500 tokens, and keeps it on disk.
KEEPING = ("generate", PROMPT * 60, "--raw", "--prompt-cache", "-n", "8", "--no-learn")
COMMANDS_WITH_THREADS = ("generate", "chat", "tune", "verify", "bench")

_TRACES = ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error", "terminate called")
# Names that files have only while they are written; the parts of a download stay, because the next one goes on there.
_UNFINISHED = re.compile(r"^\..*\.\d+-[0-9a-f]{8}$|\.partial$|\.wide$")


class SkippedFaultError(Exception):
    """A fault that cannot be injected on this machine; the message says why."""


@dataclass(frozen=True)
class Injection:
    """What became of one run. code: its exit code, as a shell says it. lost: what must not have happened, or ''."""

    code: int
    lost: str = ""


Injections = Iterator[Injection]


@dataclass(frozen=True)
class Fault:
    """A fault, by its name in the table; `inject` injects it in a place, as often as it takes."""

    name: str
    inject: Callable[[Place, Extent], Injections]


@dataclass(frozen=True)
class Extent:
    """How much is injected. every: seconds between the moments of a short run. moments: of a long run."""

    every: float
    moments: int

    def times(self, seconds: float, is_long: bool = False) -> list[float]:
        """The moments of a run that takes so many seconds."""
        n = self.moments if is_long else max(int(seconds / self.every), 1)
        return [seconds * i / n for i in range(n)]


@dataclass
class Ended:
    """How a run ended. code: as a shell says it."""

    code: int
    stdout: bytes
    stderr: str
    seconds: float
    hung: bool = False

    def problem(self, allowed: Iterable[int], *parts: str) -> str:
        """What is wrong with it: a hang, a traceback, an exit code that is not allowed, a part that stderr lacks."""
        if self.hung:
            return f"a hang of {self.seconds:.0f} s"
        if trace := next((trace for trace in _TRACES if trace in self.stderr), None):
            return f"{trace}: {self.stderr.strip().splitlines()[-1]}"
        if self.code not in allowed:
            return f"exit code {self.code}: {self.stderr.strip()[-300:]}"
        if missing := [part for part in parts if part not in self.stderr]:
            return f"stderr lacks {missing[0]!r}: {self.stderr.strip()[-300:]}"
        return ""

    def unless_good(self) -> Injections:
        """For a run without a fault, before one or after it: nothing, unless something is wrong with it."""
        if problem := self.problem({0}):
            yield Injection(self.code, f"without a fault: {problem}")

    def injection(self, allowed: Iterable[int], *parts: str, lost: str = "") -> Injection:
        """The injection; `lost` counts only where nothing else is wrong."""
        return Injection(self.code, self.problem(allowed, *parts) or lost)


@dataclass
class Place:
    """Folders of their own for data, configuration, caches and work, and the environment that names them."""

    root: Path
    command: list[str] = field(default_factory=lambda: [sys.executable, "-m", "specrun"])

    def __post_init__(self) -> None:
        for folder in (self.data, self.cache, self.config, self.work):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def hub(self) -> Path:
        return self.root / "huggingface"

    @property
    def work(self) -> Path:
        """The working directory of all runs."""
        return self.root / "work"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Nothing of the user's own, no network, and what `more` says."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SPECRUN_", "HF_"))}
        own |= {
            "SPECRUN_DATA_DIR": str(self.data),
            "SPECRUN_CACHE_DIR": str(self.cache),
            "SPECRUN_CONFIG_DIR": str(self.config),
            "HF_HOME": str(self.hub),
            "HF_ENDPOINT": "http://127.0.0.1:9",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "HOME": str(self.root / "home"),  # in which no program has models
            "OLLAMA_MODELS": str(self.root / "home"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TERM": "xterm-256color",
        }
        return own | dict(more or {})

    def arguments(self, *arguments: object) -> list[str]:
        """The command line, with one thread where that is an option."""
        words = [str(argument) for argument in arguments]
        threads = ["-t", "1"] if words[0] in COMMANDS_WITH_THREADS else []
        return [*self.command, words[0], *threads, *words[1:]]

    def start(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start specrun. before: called in the child before Python starts."""
        return subprocess.Popen(
            self.arguments(*arguments),
            cwd=self.work,
            env=self.environment(environment),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before,
        )

    def run(
        self,
        *arguments: object,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> Ended:
        """Run specrun to its end."""
        started = time.monotonic()
        process = self.start(*arguments, environment=environment, before=before, stdin=subprocess.PIPE)
        return ended(process, started, stdin)

    def struck(self, number: int, after: float, *arguments: object, stdin: bytes = b"") -> Ended:
        """Run specrun, and send it a signal so many seconds after its first line of code has run."""
        started = time.monotonic()
        process = self.start(*arguments, stdin=subprocess.PIPE)
        begun = wait_for_first_line(process)
        time.sleep(max(begun + after - time.monotonic(), 0))
        process.send_signal(number)
        return ended(process, started, stdin)

    def leftovers(self) -> str:
        """The first file that was left half-written, or JSON file that is not whole; '' if there is none."""
        for path in sorted(self.root.rglob("*")):
            if _UNFINISHED.search(path.name):
                return f"left {path.name} behind"
            if path.suffix == ".json" and path.is_file():
                try:
                    json.loads(path.read_text(encoding="utf-8"))
                except ValueError:
                    return f"half-written {path.name}"
        return ""

    def kept_prompts(self) -> list[Path]:
        """What is kept of prompts."""
        return list(self.cache.glob("prompts/*/*.state"))

    def empty(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.root)
        self.__post_init__()


def ended(process: subprocess.Popen[bytes], started: float, stdin: bytes = b"") -> Ended:
    """Wait for a process. One that hangs is killed."""
    hung = False
    try:
        stdout, stderr = process.communicate(stdin or None, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        hung = True
        process.kill()
        stdout, stderr = process.communicate()
    except BrokenPipeError:
        stdout, stderr = process.communicate()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, stdout or b"", (stderr or b"").decode(errors="replace"), time.monotonic() - started, hung)


def wait_for_first_line(process: subprocess.Popen[bytes]) -> float:
    """Wait until specrun's own code runs, which first of all asks for SIGTERM. Returns that moment.

    What happens to a process that is still starting Python is Python's. Elsewhere than on Linux this does not wait.
    """
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None and status.exists():
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
        if caught and int(caught[1], 16) & 1 << signal.SIGTERM - 1:
            break
        time.sleep(0.001)
    return time.monotonic()
