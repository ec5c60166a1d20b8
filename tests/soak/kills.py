"""Chats that are killed while they save: what was there stays, and what was saved is there.

    python -m tests.soak.kills FOLDER SECONDS SEED STEP

A process is killed at every byte (or every STEP bytes) of every file that a chat writes, by a limit of file sizes at
which the system ends it with a signal, then with SIGKILL at random moments, and several processes write at once.
Afterwards each file holds what it held before or what was being written, whole, and nothing that a process has reported
as saved is missing. This runs in a process of its own, which has no thread, as it forks.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specrun.chat import conversation_file
from specrun.chat.conversation_file import Keeper, LastConversation, save
from specrun.chat.reader import TypedHistory
from specrun.llama.chat_template import Message
from specrun.locations import data_dir

_WRITERS = 3  # processes at once
_EACH = 25  # things that each of them writes


@dataclass(frozen=True)
class Kind:
    """A file that chats write.

    begin: makes a process ready to write, and returns what writes the n-th thing. numbers: those that are there, the
    oldest first; raises an error for anything that is not whole. keeps_all: whether all are kept, or only the last.
    has_many: whether the last of every process is kept.
    """

    begin: Callable[[], Callable[[int], None]]
    numbers: Callable[[], list[int]]
    keeps_all: bool = False
    has_many: bool = False


def _messages(n: int) -> list[Message]:
    return [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": f"é {n} " * (n % 7)}]


def _number(messages: list[Message]) -> int:
    n = int(messages[0]["content"])
    assert messages == _messages(n), "half of one conversation and half of another"
    return n


def _text(n: int) -> str:
    return f"{n}\n{'x' * (n % 50)}"


def _number_of(text: str) -> int:
    n = int(text.split("\n")[0])
    assert text == _text(n), "half of a message"
    return n


def _saved() -> Path:
    return data_dir() / "saved.json"


def _save() -> Callable[[int], None]:
    return lambda n: save(_saved(), LastConversation(None, _messages(n)))


def _keep() -> Callable[[int], None]:
    keeper = Keeper()
    return lambda n: keeper.keep(LastConversation(None, _messages(n)))


def _typed() -> TypedHistory:
    return TypedHistory(conversation_file.folder() / "typed.jsonl")


def _type() -> Callable[[int], None]:
    history = _typed()

    def store(n: int) -> None:
        history.store_string(_text(n))
        assert history.failure is None

    return store


KINDS = {
    "/save": Kind(_save, lambda: [_number(conversation_file.read(_saved()).messages)] if _saved().exists() else []),
    "--continue": Kind(
        _keep,
        lambda: [_number(conversation_file.read(path).messages) for path in conversation_file.kept()[::-1]],
        has_many=True,
    ),
    "typed messages": Kind(
        _type,
        lambda: [_number_of(text) for text in reversed(list(_typed().load_history_strings()))],
        keeps_all=True,
    ),
}


def _forked(act: Callable[[int], None]) -> tuple[int, int]:
    """Do something in a process of its own, which may report numbers through a pipe. Returns (process, pipe)."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    code = 1
    try:
        act(writing)
        code = 0
    finally:
        os._exit(code)


def _ended(process: int, pipe: int) -> tuple[int, list[int]]:
    """Wait for the process. Returns its status as of `os.waitpid`, and the numbers that it has reported."""
    reported = b""
    while part := os.read(pipe, 1 << 16):
        reported += part
    os.close(pipe)
    _, status = os.waitpid(process, 0)
    return status, [int.from_bytes(reported[i : i + 4], "little") for i in range(0, len(reported) // 4 * 4, 4)]


def _report(pipe: int, n: int) -> None:
    os.write(pipe, n.to_bytes(4, "little"))


def _at_byte(kind: Kind, n: int, size: int) -> bool:
    """Write the n-th thing with a limit for the size of files. Returns whether that has killed the process."""

    def act(pipe: int) -> None:
        write = kind.begin()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        write(n)
        _report(pipe, n)

    status, reported = _ended(*_forked(act))
    assert os.WIFSIGNALED(status) or status == 0, "the process failed"
    assert bool(reported) == (status == 0)
    return status != 0


def at_every_byte(kind: Kind, step: int = 1) -> int:
    """Kill writers at every byte of the file, first of a new one and then of one with something in it.

    Returns how many were killed.
    """
    return sum(_at_every_byte(kind, n, step) for n in (101, 102))


def _at_every_byte(kind: Kind, n: int, step: int) -> int:
    before = kind.numbers()
    aside = data_dir().with_name("aside")
    shutil.copytree(data_dir(), aside)
    for n_killed in itertools.count():
        was_killed = _at_byte(kind, n, n_killed * step)
        after = kind.numbers()
        if not was_killed:
            assert after[-1] == n, "what was saved is not there"
            assert not kind.keeps_all or after[:-1] == before
            shutil.rmtree(aside)
            return n_killed
        # Of a line that was added, the last byte only ends it: killed before that, the message is there, whole.
        assert after == before or (kind.keeps_all and after == [*before, n]), "what was there before is not there"
        # The next chat can write, whatever this one has left.
        kind.begin()(n + 100)
        assert kind.numbers() == ([*after, n + 100] if kind.keeps_all or kind.has_many else [n + 100])
        shutil.rmtree(data_dir())
        shutil.copytree(aside, data_dir())
    raise AssertionError("unreachable")


def at_random(kind: Kind, random_: random.Random) -> int:
    """Kill a process that writes one thing after another. Returns how many it had written."""
    before = kind.numbers()

    def act(pipe: int) -> None:
        write = kind.begin()
        n = max(before, default=200)
        while True:
            n += 1
            write(n)
            _report(pipe, n)

    process, pipe = _forked(act)
    time.sleep(random_.uniform(0, 0.04))
    os.kill(process, signal.SIGKILL)
    status, reported = _ended(process, pipe)
    assert os.WIFSIGNALED(status), "the process failed"
    after = kind.numbers()
    if kind.keeps_all:
        wanted = [*before, *reported]
        # The last may be there, and not yet be reported.
        assert after[: len(wanted)] == wanted, "something that was saved is missing"
        assert len(after) - len(wanted) <= 1
    else:
        first = max(before, default=200) + 1
        assert max(after, default=first - 1) - (reported[-1] if reported else first - 1) in (0, 1), "not the last"
        assert not kind.has_many or set(before) <= set(after), "another chat's conversation is missing"
    return len(reported)


def at_once(kind: Kind) -> int:
    """Several processes write at the same time. Returns how many things they have written."""
    before = kind.numbers()
    first = max(before, default=200) + 1

    def act(writer: int) -> None:
        write = kind.begin()
        for i in range(_EACH):
            write(first + writer * _EACH + i)

    ended = [
        _ended(*started)
        for started in [_forked(lambda _pipe, writer=writer: act(writer)) for writer in range(_WRITERS)]
    ]
    assert all(status == 0 for status, _ in ended), "a process failed"
    after = kind.numbers()
    if kind.keeps_all:
        assert sorted(after) == sorted([*before, *range(first, first + _WRITERS * _EACH)]), "something is missing"
    else:
        lasts = {first + (writer + 1) * _EACH - 1 for writer in range(_WRITERS)}
        assert lasts & set(after), "the last that was saved is not there"
        assert not kind.has_many or lasts <= set(after), "one chat has lost its conversation to another"
    return _WRITERS * _EACH


def kill_for(folder: Path, seconds: float, seed: int = 0, step: int = 1) -> Counter[str]:
    """Kill writers at every `step` bytes, and then at random for so many seconds. Returns what was done."""
    command = [sys.executable, "-m", "tests.soak.kills", str(folder), str(seconds), str(seed), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return Counter(json.loads(ended.stdout))


def main() -> None:
    folder, seconds, seed, step = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    random_ = random.Random(seed)
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for name, kind in KINDS.items():
        os.environ["SPECRUN_DATA_DIR"] = str(folder / name.strip("/-").replace(" ", "-"))
        data_dir().mkdir(parents=True, exist_ok=True)
        counts["killed at a byte"] += at_every_byte(kind, step)
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        for name, kind in KINDS.items():
            os.environ["SPECRUN_DATA_DIR"] = str(folder / f"{rounds}" / name.strip("/-").replace(" ", "-"))
            data_dir().mkdir(parents=True)
            for _ in range(10):
                counts["saved before a kill"] += at_random(kind, random_)
                counts["killed at random"] += 1
            counts["saved at once"] += at_once(kind)
        rounds += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
