#!/usr/bin/env python3
"""Run the tests of programs that ask the server (tests/clients), in an environment of their own.

    python scripts/client_programs.py [--environment FOLDER] [PYTEST-ARGUMENT ...]

The environment has the newest release of each program from PyPI, and, where there is npm, from npm: 600 MB, made once
in some minutes, and again with --renew. `-k litellm` runs one program's test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path.home() / ".cache" / "specrun-client-programs"
PYPI = (
    *("openai", "anthropic", "litellm", "instructor", "langchain-openai", "pydantic-ai-slim[openai]"),
    *("openai-agents", "smolagents[openai]", "outlines"),
)
NPM = ("openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod")


def make(folder: Path) -> None:
    """Install the programs into `folder`."""
    print(f"installing programs into {folder} ...", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *PYPI], check=True)
    npm = shutil.which("npm")
    if npm:
        (folder / "package.json").write_text("{}")
        subprocess.run([npm, "install", "--silent", *NPM], cwd=folder, check=True)
    (folder / "complete").touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=FOLDER, help=f"where it lies ({FOLDER})")
    parser.add_argument("--renew", action="store_true", help="make it again, with the newest releases")
    options, rest = parser.parse_known_args()
    folder = options.environment.absolute()
    if options.renew or not (folder / "complete").exists():
        make(folder)
    names = [name.partition("[")[0] for name in PYPI]
    listed = subprocess.run([folder / "bin" / "python", "-m", "pip", "show", *names], stdout=subprocess.PIPE, text=True)
    told = [line.split(": ", 1)[1] for line in listed.stdout.splitlines() if line.startswith(("Name: ", "Version: "))]
    print(", ".join(f"{name} {version}" for name, version in zip(told[::2], told[1::2], strict=True)))
    tests = [sys.executable, "-m", "pytest", "-n", "0", "-m", "clients", "tests/clients", *rest]
    variables = {**os.environ, "SPECRUN_CLIENTS": str(folder)}
    return subprocess.run(tests, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
