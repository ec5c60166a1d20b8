"""Run a command with reads from storage slowed down, as on a machine with a slower disk.

    python scripts/slow_disk.py 400M FILE -- COMMAND...

At most so many bytes a second are read from the disk that FILE is on, by the command and what it starts. Needs Linux
and root (cgroups: blkio of version 1, or io of version 2, which was not tried). The exit code is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from capped import CapError, options_and_command, parse_size

CGROUPS = Path("/sys/fs/cgroup")


def disk_of(file: Path) -> str:
    """MAJOR:MINOR of the disk, not the partition, that a file is on."""
    try:
        device = file.stat().st_dev
    except OSError as error:
        raise CapError(f"{file} cannot be read: {error.strerror}") from error
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        raise CapError(f"{file} is not on a disk whose speed can be limited")
    whole = block.resolve().parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()


@contextmanager
def limited(disk: str, rate: int) -> Iterator[Path]:
    """A cgroup whose members read at most `rate` bytes a second from `disk`; gives its list of members."""
    name = f"specrun-slow-disk-{os.getpid()}"
    for parent, file, line in (
        (CGROUPS / "blkio", "blkio.throttle.read_bps_device", f"{disk} {rate}"),
        (CGROUPS, "io.max", f"{disk} rbps={rate}"),
    ):
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(line)
                yield group / "cgroup.procs"
                return
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    raise CapError("reads can only be slowed down on Linux, by root, where cgroups have blkio or io")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s RATE FILE -- COMMAND...",
    )
    parser.add_argument("rate", metavar="RATE", help="bytes a second, like 400M or 1.5G")
    parser.add_argument("file", metavar="FILE", type=Path, help="any file on the disk, like the model's")
    options, command = options_and_command(parser)
    try:
        with limited(disk_of(options.file), parse_size(options.rate)) as members:

            def enter() -> None:
                members.write_text(str(os.getpid()))

            code = subprocess.call(command, preexec_fn=enter)
            return code if code >= 0 else 128 - code
    except CapError as error:
        print(f"slow_disk.py: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"slow_disk.py: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
