"""Run a command with its memory capped, page cache included, as on a machine with less of it.

    python scripts/capped.py 2G [--evict FILE...] [--drop-caches] -- COMMAND...

A model file that is larger than SIZE is then read from storage again and again. Pages that are in the cache before
the run are not charged to the cap: --evict drops those of the files named, --drop-caches those of all files (root).
Afterwards a line on stderr says what was really read from storage. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

USAGE_EXIT_CODE = 2
NOT_FOUND_EXIT_CODE = 127
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
NEEDS = (
    "a memory cap needs Linux and one of: root, a cgroup (v1 or v2) that you may write to, or a systemd user session "
    "for systemd-run"
)


class CapError(Exception):
    """Something that keeps the command from running; the message is one line."""

    def __init__(self, message: str, exit_code: int = USAGE_EXIT_CODE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def parse_size(text: str) -> int:
    """Bytes of "300M", "1.5G", "2GiB" or a plain number, in whole pages; units are powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:I?B)?", text.strip().upper())
    size = int(float(match[1]) * UNITS[match[2]]) // mmap.PAGESIZE * mmap.PAGESIZE if match else 0
    if not size:
        raise CapError(f"{text!r} is not a size; write it like 300M or 1.5G")
    return size


def bytes_read(output: str) -> int:
    """What the last line of this script in an output says was read from storage; 0 if that is not known."""
    found = re.findall(r"^capped\.py: read (\d+) bytes", output, re.MULTILINE)
    return int(found[-1]) if found else 0


def in_mib(n_bytes: int) -> str:
    """For people."""
    return f"{n_bytes / 2**20:,.1f} MiB"


@dataclass(frozen=True)
class Controller:
    """How one version of cgroups names what we need."""

    version: int
    limit: str
    swap_limit: str
    swap_is_counted_with_memory: bool
    peak: str
    events: str


V1 = Controller(1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True, "memory.max_usage_in_bytes",
                "memory.oom_control")  # fmt: skip
V2 = Controller(2, "memory.max", "memory.swap.max", False, "memory.peak", "memory.events")


class Group:
    """A cgroup of its own for one command."""

    def __init__(self, path: Path, controller: Controller, size: int) -> None:
        """Make it under `path`'s parent. Raises OSError if that, the limit or a member is refused."""
        self.path = path
        self.controller = controller
        path.mkdir()
        try:
            (path / controller.limit).write_text(str(size))
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (path / controller.swap_limit).write_text(str(size if controller.swap_is_counted_with_memory else 0))
            subprocess.run(["true"], preexec_fn=self.enter, check=True, stderr=subprocess.DEVNULL)
        except BaseException as error:
            self.remove()
            raise OSError(str(error)) if isinstance(error, subprocess.SubprocessError) else error from None

    @property
    def name(self) -> str:
        """For the report."""
        return f"cgroup v{self.controller.version}"

    def enter(self) -> None:
        """Move the calling process in."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int | None:
        """Most memory that was charged, page cache included; None on kernels that do not say."""
        try:
            return int((self.path / self.controller.peak).read_text())
        except OSError:
            return None

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the cap left no room."""
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", (self.path / self.controller.events).read_text(), re.MULTILINE)
            return int(match[1]) if match else 0
        return 0

    def remove(self) -> None:
        """Kill what is left in it, and the group."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                for pid in (self.path / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
        print(f"capped.py: {self.path} could not be removed", file=sys.stderr)


def candidate_parents() -> Iterator[tuple[Path, Controller]]:
    """Groups under which a child may be made: our own, then its ancestors, where the memory controller is found."""
    mounts: dict[Controller, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        file_system, _, options = kind.split(" ", 2)
        if file_system == "cgroup2":
            mounts[V2] = Path(fields.split()[4])
        elif file_system == "cgroup" and "memory" in options.split(","):
            mounts[V1] = Path(fields.split()[4])
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        controller = V2 if number == "0" else V1 if "memory" in controllers.split(",") else None
        if controller is None or controller not in mounts:
            continue
        mount = mounts[controller]
        here = mount / path.lstrip("/")
        # In a container, the path may be the host's, of which the mount shows a part only.
        for parent in [here, *here.parents] if here.is_dir() else [mount]:
            if parent.is_relative_to(mount):
                yield parent, controller


def make_group(size: int) -> Group | None:
    """A group for the command, or None if no cgroup lets us."""
    for parent, controller in candidate_parents():
        if controller is V2:
            # Refused if the group has processes of its own; its parent, which has none, is the next candidate.
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text("+memory")
        with contextlib.suppress(OSError):
            return Group(parent / f"specrun-capped-{os.getpid()}", controller, size)
    return None


def scope_command(size: int) -> list[str] | None:
    """What to put before a command so that systemd caps it, or None if there is no user session."""
    program = shutil.which("systemd-run")
    if not program:
        return None
    scope = [program, "--user", "--scope", "--quiet", "-p", f"MemoryMax={size}", "-p", "MemorySwapMax=0", "--"]
    # A session without the memory controller takes the property and ignores it, so we look.
    look = 'cat "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/memory.max"'
    trial = subprocess.run([*scope, "sh", "-c", look], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return scope if trial.stdout.strip() == str(size) else None


def resident_bytes(path: Path) -> int | None:
    """How much of a file is in the page cache; None if the kernel would not tell us the truth."""
    # Linux calls all of a file resident for those who may not write it.
    status = path.stat()
    if not status.st_size:
        return 0
    if status.st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
        pages = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapping)
        try:
            failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapping)), pages)
        finally:
            del start
        return None if failed else sum(page & 1 for page in bytes(pages)) * mmap.PAGESIZE


def evict(path: Path) -> None:
    """Drop a file's pages from the page cache; says so if some stay."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = resident_bytes(path)
    except OSError as error:
        raise CapError(f"{path} cannot be evicted: {error.strerror}") from error
    if left is None:
        note(f"{path} evicted; how much of it stays cached cannot be told without the right to write it")
    elif left:
        note(f"{in_mib(left)} of {path} stay in the page cache; does another process have it mapped?")


def drop_caches() -> None:
    """Drop the page cache of the whole machine."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError as error:
        raise CapError(f"--drop-caches needs root ({error.strerror}); --evict FILE works without") from error


def bytes_read_from_storage() -> int | None:
    """By this process and all its descendants that have ended and were waited for; None if the kernel does not say."""
    try:
        match = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def run(command: list[str], enter: Callable[[], None] | None) -> int:
    """Run to the end and return the exit code as a shell would."""
    try:
        process = subprocess.Popen(command, preexec_fn=enter)
    except OSError as error:
        raise CapError(f"{command[0]} cannot be run: {error.strerror}") from error
    # Ctrl-C reaches the command by itself; what ends us from elsewhere is passed on to it.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    signal.signal(signal.SIGHUP, lambda *_: process.send_signal(signal.SIGHUP))
    code = process.wait()
    return code if code >= 0 else 128 - code


def report(group: Group | None, size: int, read_before: int | None) -> None:
    """What the run took, in one line."""
    import resource  # Linux and macOS only; on Windows we get no further than saying what we need

    read, faults = bytes_read_from_storage(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_majflt
    if read is None or read_before is None:
        parts = ["bytes read from storage unknown"]
    else:
        parts = [f"read {read - read_before} bytes ({in_mib(read - read_before)}) from storage"]
    parts.append(f"{faults} major page faults")
    peak = group.peak() if group else None
    parts.append(f"peak memory {'unknown' if peak is None else in_mib(peak)} of {in_mib(size)}")
    parts.append(group.name if group else "systemd scope")
    if group and group.oom_kills():
        parts.append(f"{group.oom_kills()} processes KILLED for lack of memory")
    note(", ".join(parts))


def note(text: str) -> None:
    """A line on stderr."""
    print(f"capped.py: {text}", file=sys.stderr)


def capped(size: int, files: list[Path], drop: bool, command: list[str]) -> int:
    """Everything in order; returns the exit code."""
    if not shutil.which(command[0]):
        raise CapError(f"{command[0]}: command not found", NOT_FOUND_EXIT_CODE)
    for path in files:
        evict(path)
    if drop:
        drop_caches()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    group = make_group(size)
    scope = None if group else scope_command(size)
    if group is None and scope is None:
        raise CapError(NEEDS)
    try:
        before = bytes_read_from_storage()
        code = run((scope or []) + command, group.enter if group else None)
        report(group, size, before)
        return code
    finally:
        if group:
            group.remove()


def options_and_command(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
    """What stands before -- and the command behind it; ends the program if there is none."""
    arguments, command = sys.argv[1:], []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, command = arguments[:split], arguments[split + 1 :]
    options = parser.parse_args(arguments)
    if not command:
        parser.error("give a command after --")
    return options, command


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s SIZE [...] -- COMMAND...",
    )
    parser.add_argument("size", metavar="SIZE", help="the cap, like 300M or 1.5G")
    parser.add_argument("--evict", metavar="FILE", type=Path, nargs="+", action="extend", default=[],
                        help="drop these files from the page cache first")  # fmt: skip
    parser.add_argument("--drop-caches", action="store_true", help="drop the whole page cache first (root)")
    options, command = options_and_command(parser)
    try:
        if sys.platform != "linux":
            raise CapError(NEEDS)
        return capped(parse_size(options.size), options.evict, options.drop_caches, command)
    except CapError as error:
        note(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
