"""A chat on a terminal that is resized, closed or signalled, at the prompt and in the middle of an answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from fault_tools.injecting import Extent, Fault, Injection, Injections, Place, SkippedFaultError

if TYPE_CHECKING:
    import pexpect

_HINT = "a message, or /help"
_WAIT_S = 60
_BEGUN_S = 0.3  # until an answer has a token
_CHAT = ("chat", "-m", "embedded", "--speculate", "off", "--no-learn", "-n", "600")
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def opened(place: Place, *more: str, ignoring: tuple[int, ...] = ()) -> pexpect.spawn[str]:
    """A chat that waits for a message. ignoring: signals that it was started to ignore, as by `nohup`."""
    try:
        import pexpect
    except ImportError as error:
        raise SkippedFaultError("pexpect is missing: pip install '.[dev]'") from error
    command = place.arguments(*_CHAT, *more)

    def ignore() -> None:
        for number in ignoring:
            signal.signal(number, signal.SIG_IGN)

    terminal = pexpect.spawn(
        command[0],
        command[1:],
        encoding="utf-8",
        codec_errors="replace",
        timeout=_WAIT_S,
        dimensions=(40, 90),
        cwd=str(place.work),
        env=place.environment({"PROMPT_TOOLKIT_NO_CPR": "1"}),  # type: ignore[arg-type]
        preexec_fn=ignore,
        ignore_sighup=False,
    )
    terminal.expect_exact(_HINT)
    return terminal


def left(terminal: pexpect.spawn[str]) -> tuple[int, str]:
    """Exit code and the end of what was shown. A chat that does not end is killed; its code is then -1."""
    import pexpect

    try:
        terminal.expect(pexpect.EOF, timeout=_WAIT_S)
    except pexpect.TIMEOUT:
        terminal.kill(signal.SIGKILL)
        return -1, terminal.before or ""
    text = terminal.before or ""
    terminal.wait()
    code = 128 + terminal.signalstatus if terminal.signalstatus else terminal.exitstatus
    return int(code or 0), text


def gone(terminal: pexpect.spawn[str]) -> int:
    """Close the terminal, and wait for the process. Returns its exit code, -1 if it had to be killed."""
    pid = terminal.pid
    terminal.ptyproc.fileobj.close()
    terminal.closed = terminal.ptyproc.closed = True
    terminal.child_fd = terminal.ptyproc.fd = -1
    code = -1
    for _ in range(int(_WAIT_S / 0.05)):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return code if code >= 0 or code == -1 else 128 - code


def resizing(place: Place, extent: Extent) -> Injections:
    """Sizes that change all the time, one letter wide among them."""
    for more in ((), ("--plain",)):
        terminal = opened(place, *more)
        for text in ("sing\r", "and again\r"):
            terminal.send(text)
            for i in range(extent.moments * 4):
                rows, columns = [(40, 90), (1, 1), (2, 3), (10, 20), (200, 500), (3, 80), (40, 1)][i % 7]
                terminal.setwinsize(rows, columns)
                time.sleep(min(extent.every, 0.05))
            terminal.setwinsize(40, 90)
            # The line below an answer has this, too, and a Ctrl-D during an answer is lost: wait for the next prompt.
            terminal.expect_exact("tokens/s")
            terminal.expect_exact(_HINT)
        terminal.send("\x04")
        code, text = left(terminal)
        lost = "Traceback" if "Traceback" in text else "" if code == 0 else f"exit code {code}"
        yield Injection(code, lost or ("" if _messages(place) == 4 else "a part of the conversation"))
        place.empty()


def closed(is_told: bool, place: Place, extent: Extent) -> Injections:
    """The terminal is closed. is_told: whether SIGHUP says so; else only reading and writing fail."""
    ignoring = () if is_told else (signal.SIGHUP,)
    for moment in (None, *extent.times(1.0)):
        terminal = opened(place, ignoring=ignoring)
        if moment is not None:
            terminal.send("sing\r")
            terminal.expect_exact("tokens")  # the line below an answer that is being written
            time.sleep(_BEGUN_S + moment)
        code = gone(terminal)
        allowed = {129} if is_told else {0, 1}
        lost = "it went on without a terminal" if code == -1 else "" if code in allowed else f"exit code {code}"
        if moment is not None and not lost and _messages(place) != 2:
            lost = "the answer"
        yield Injection(code, lost or place.leftovers())
        place.empty()


def signalled(number: int, place: Place, extent: Extent) -> Injections:
    """A signal at the prompt and at moments of an answer. The terminal is given back as it was."""
    import termios

    for moment in (None, *extent.times(1.0)):
        terminal = opened(place)
        if moment is not None:
            terminal.send("sing\r")
            terminal.expect_exact("tokens")
            time.sleep(_BEGUN_S + moment)
        descriptor = os.dup(terminal.child_fd)
        terminal.kill(number)
        code, text = left(terminal)
        lost = "a hang" if code == -1 else "" if code == _CODES[number] else f"exit code {code}: {text[-200:]}"
        if "Traceback" in text:
            lost = f"Traceback: {text[-200:]}"
        with contextlib.suppress(termios.error, OSError):
            if not termios.tcgetattr(descriptor)[3] & termios.ECHO:
                lost = lost or "the echo of the terminal"
        os.close(descriptor)
        if moment is not None and not lost and _messages(place) != 2:
            lost = "the answer"
        if text.rfind("\x1b[?25l") > text.rfind("\x1b[?25h"):
            lost = lost or "the cursor"
        yield Injection(code, lost or place.leftovers())
        place.empty()


def _messages(place: Place) -> int:
    """Messages of the conversation that was kept."""
    files = list(place.data.glob("chats/conversation-*.json"))
    return len(json.loads(files[0].read_text())["messages"]) if files else 0


FAULTS = [
    Fault("terminal resized", resizing),
    Fault("terminal closed", partial(closed, True)),
    Fault("terminal closed under nohup", partial(closed, False)),
    Fault("SIGTERM in a chat on a terminal", partial(signalled, signal.SIGTERM)),
    Fault("SIGHUP in a chat on a terminal", partial(signalled, signal.SIGHUP)),
]
