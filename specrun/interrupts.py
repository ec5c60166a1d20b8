"""What ends a command before its time: Ctrl-C, SIGTERM (`kill`, `systemctl stop`), SIGHUP (the terminal is closed;
on Windows that is SIGBREAK).

By default each of these signals is raised as an exception. Inside an `InterruptFlag` it sets the flag, and inside
`held` it waits. A process that was started to ignore a signal, as by `nohup`, goes on ignoring it.

Where C code cannot go on, the process ends at once: what was written is kept, the terminal is restored, and one line
says why (`undone`, `report_sudden_end`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from specrun.errors import INTERRUPTED_EXIT_CODE

_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
_SIGNALS = [signal.SIGINT, *_ENDINGS]
_EXIT_CODE_OF_A_SIGNAL = 128  # plus its number, as shells say it
_SECONDS_OF_ONE_END = 2.0  # shells, terminals and systemd say the same several times, which must not stop cleaning up
_STDERR = 2
_CLEAR_LINE_AND_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"

_ending: tuple[int, float] | None = None  # the last SIGTERM or SIGHUP, and when it came
_undo: list[Callable[[], None]] = []  # what a sudden end calls, the last first


class Ending(KeyboardInterrupt):
    """SIGTERM or SIGHUP: like Ctrl-C, but the user will give no further command."""


def never() -> bool:
    """The `interrupted` of work that nothing interrupts."""
    return False


def catch_endings() -> None:
    """From now on SIGTERM and SIGHUP raise `Ending`, unless they are ignored. Only in the main thread."""
    for number in _ENDINGS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise)


def ignore_all() -> None:
    """Ignore all signals from now on, so that none disturbs the end of the process."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def is_ending() -> bool:
    """Whether SIGTERM or SIGHUP has come, so that nothing new may begin."""
    return _ending is not None


def exit_code() -> int:
    """The exit code of a command that was interrupted."""
    return _EXIT_CODE_OF_A_SIGNAL + _ending[0] if _ending else INTERRUPTED_EXIT_CODE


class InterruptFlag:
    """A context manager. Inside it the first signal sets the flag, and the second raises KeyboardInterrupt.

    say: called at once at the first Ctrl-C, in another thread.
    """

    def __init__(self, say: Callable[[], None] | None = None) -> None:
        self._is_set = False
        self._say = say

    def __call__(self) -> bool:
        """Whether a signal came."""
        return self._is_set

    def __enter__(self) -> InterruptFlag:
        self._is_set = False
        self._undo = ExitStack()
        if self._say:
            self._undo.enter_context(_listening(self._say))
        for number, handler in _replaced(self._on_signal).items():  # which are back before anything waits
            self._undo.callback(signal.signal, number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_set:
            _raise(number, frame)
        self._is_set = True
        _is_new(number)


@contextmanager
def _listening(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` at the first Ctrl-C inside the block. Python's own handlers wait until a call into C is over, and a
    pass over streamed weights may take half a minute.
    """
    import socket

    heard, wakes = socket.socketpair()
    wakes.setblocking(False)

    def listen() -> None:
        while number := heard.recv(1):
            if number[0] == signal.SIGINT:
                say()
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        wakes.close()  # which ends the thread
        with heard:  # a second Ctrl-C may be raised here
            thread.join()


@contextmanager
def held(heard: Callable[[], object] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Inside the block signals wait, because no exception can be raised through C that calls Python back. They take
    effect when the block ends. Yields a function that says whether a signal waits. heard: called at each signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never  # only the main thread gets signals
        return
    waiting: list[int] = []

    def wait(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)
        heard()

    before = _replaced(wait)
    try:
        yield lambda: bool(waiting)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in waiting:
            before[number](number, None)


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Inside the block a sudden end calls `undo` first: for what would otherwise outlive the process, or be lost."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def report_sudden_end(message: str, descriptor: int = _STDERR) -> None:
    """Write why the process ends now, as a line on stderr, after everything that `undone` holds was called.

    Python's own streams are not used, as another thread may be using them. descriptor: of stderr. Raises OSError.
    """
    for undo in reversed(_undo):
        with suppress(Exception):  # nothing may keep the process from ending
            undo()
    prefix = _CLEAR_LINE_AND_SHOW_CURSOR if os.isatty(descriptor) else b""
    os.write(descriptor, prefix + f"specrun: {message}\n".encode(errors="replace"))


Handler = Callable[[int, FrameType | None], object]


def _replaced(handler: Handler) -> dict[int, Handler]:
    """Install a handler of all signals that Python handles now. Returns the handlers that it replaced, by number."""
    before: dict[int, Handler] = {}
    for number in _SIGNALS:
        now = signal.getsignal(number)
        if callable(now):
            before[number] = now
            signal.signal(number, handler)
    return before


def _raise(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if _is_new(number):
        raise Ending


def _is_new(number: int) -> bool:
    """Take note of a signal. Returns False where it only repeats that the process shall end."""
    global _ending
    if number == signal.SIGINT:
        return True
    now = time.monotonic()
    if _ending and now < _ending[1] + _SECONDS_OF_ONE_END:
        return False
    _ending = number, now
    return True
