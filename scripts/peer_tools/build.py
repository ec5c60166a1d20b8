"""Builds llama.cpp's tools from the source distribution of the llama-cpp-python that is installed."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from peer_tools.errors import PeerError

PACKAGE = "llama-cpp-python"
CMAKE_OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
]

# What is put before a place in a source file, because the tools of 0.3.36 cannot be measured without it.
#
# llama-speculative puts branches into several sequences, which needs a KV cache that they share, but has no option for
# one: its passes fail as soon as there are two branches, and it goes on with stale logits.
#
# All four print from a thread that the end of the program does not wait for: on a busy machine, timings get lost.
SHARED_CACHE = ("    if (params.speculative.draft.mparams.path.empty()) {", "    params.kv_unified = true;\n")
FLUSHED_LOG = ("    llama_backend_free();", "    common_log_flush(common_log_main());\n")
CHANGES = [
    ("examples/speculative/speculative.cpp", SHARED_CACHE),
    ("examples/speculative/speculative.cpp", FLUSHED_LOG),
    ("examples/speculative-simple/speculative-simple.cpp", FLUSHED_LOG),
    ("examples/lookup/lookup.cpp", FLUSHED_LOG),
    ("tools/completion/completion.cpp", FLUSHED_LOG),
]


def installed_version() -> str:
    """Version of llama-cpp-python. Raises PeerError if it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise PeerError(f"{PACKAGE} is not installed; install specrun first") from error


def default_folder() -> Path:
    """Where the tools of this version are built unless told otherwise."""
    return Path.home() / ".cache" / "specrun-peers" / installed_version()


def programs(folder: Path, names: Sequence[str], jobs: int) -> dict[str, Path]:
    """Paths of the programs named, which are built in `folder` if they are not there yet.

    Raises PeerError if something that the build needs is missing, or the build fails.
    """
    suffix = ".exe" if sys.platform == "win32" else ""
    paths = {name: folder / "build" / "bin" / f"{name}{suffix}" for name in names}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        _check_build_tools()
        folder.mkdir(parents=True, exist_ok=True)
        source = _source(folder)
        print(f"peers.py: compiling {', '.join(missing)} in {folder}; this takes some minutes", file=sys.stderr)
        options = CMAKE_OPTIONS + shlex.split(os.environ.get("CMAKE_ARGS", ""))
        log = folder / "build.log"
        _run(["cmake", "-S", str(source), "-B", str(folder / "build"), *options], log)
        build = ["cmake", "--build", str(folder / "build"), "--config", "Release", "--parallel", str(jobs)]
        _run([*build, "--target", *missing], log)
    return paths


def _check_build_tools() -> None:
    if not shutil.which("cmake"):
        raise PeerError("building llama.cpp's tools needs cmake; install it, for example with: pip install cmake")
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    if not any(shutil.which(name) for name in compilers if name):
        raise PeerError("building llama.cpp's tools needs a C++ compiler; install one, for example g++")


def _source(folder: Path) -> Path:
    """The llama.cpp inside the source distribution, which is downloaded once."""
    version = installed_version()
    unpacked = folder / "source"
    if not unpacked.is_dir():
        print(f"peers.py: downloading the source of {PACKAGE} {version}", file=sys.stderr)
        download = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        # Not ":all:", which would make pip compile the build tools that it needs to read the package's metadata.
        download += ["--no-binary", PACKAGE, "--dest", str(folder), f"{PACKAGE}=={version}"]
        _run(download, folder / "download.log")
        partial = folder / "source.partial"
        shutil.rmtree(partial, ignore_errors=True)
        archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        archive.unlink()
        content = next(partial.iterdir())
        for file, change in CHANGES:
            insert(content / "vendor" / "llama.cpp" / file, *change)
        content.rename(unpacked)
        partial.rmdir()
    return unpacked / "vendor" / "llama.cpp"


def insert(source: Path, place: str, addition: str) -> None:
    """Put `addition` before `place`, once. Versions of llama.cpp that look different stay as they are."""
    text = source.read_text(encoding="utf-8")
    if text.count(place) == 1 and addition.strip() not in text:
        source.write_text(text.replace(place, addition + place), encoding="utf-8")


def _run(command: list[str], log: Path) -> None:
    """Run with all output in `log`. Raises PeerError if it fails."""
    with log.open("w") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if code:
        raise PeerError(f"`{shlex.join(command[:4])} ...` failed with exit code {code}; its output is in {log}")
