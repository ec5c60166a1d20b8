"""A build for CUDA without the CUDA runtime: pip's packages are found, and without them one line says what to install.

The build is a library that needs libcudart.so.12, compiled here, behind llama-cpp-python's own loader.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest

from specrun.doctor import loading_fix
from specrun.errors import LlamaError
from specrun.llama import shared_library

COMPILER = shutil.which("cc") or shutil.which("gcc")
LOADER = Path(llama_cpp.__file__).with_name("_ctypes_extensions.py")
INIT = """from pathlib import Path
from llama_cpp._ctypes_extensions import load_shared_library
load_shared_library("llama", Path(__file__).parent / "lib")
"""

pytestmark = pytest.mark.skipif(not (sys.platform == "linux" and COMPILER), reason="links a library as Linux does")

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with such a build, and the runtime in a folder that nobody looks into."""
    package = tmp_path / "site" / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text(INIT)
    (package / "_ggml.py").write_text("libggml = None")
    shutil.copy(LOADER, package)
    (package / "lib" / "libggml-cuda.so").touch()
    runtime = tmp_path / "libcudart.so.12"
    _compile("int cudaRuntimeGetVersion(void) { return 12; }", runtime, "-Wl,-soname,libcudart.so.12")
    source = "int cudaRuntimeGetVersion(void); int llama(void) { return cudaRuntimeGetVersion(); }"
    _compile(source, package / "lib" / "libllama.so", str(runtime))
    return package.parent


def _compile(source: str, output: Path, *options: str) -> None:
    assert COMPILER
    command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(output), *options]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.fixture
def python(site: Path) -> Python:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(site), str(Path.cwd())])
        command, environment = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)

    return run


@pytest.mark.slow
def test_without_the_runtime_one_line_names_its_package(python: Python) -> None:
    run = python("-m", "specrun", "generate", "-m", "embedded", "-n", "1", "x")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (LlamaError.exit_code, "", 1), run
    assert run.stderr.startswith("specrun: llama.cpp's library cannot be loaded: libcudart.so.12: cannot open"), run
    assert run.stderr.endswith("pip install '.[cuda12]'\n"), run


@pytest.mark.parametrize("folder", ["cuda_runtime", "cu12"])
def test_the_runtime_of_pips_packages_is_loaded_first(python: Python, site: Path, folder: str) -> None:
    library = site / "nvidia" / folder / "lib" / "libcudart.so.12"
    library.parent.mkdir(parents=True)
    (site.parent / "libcudart.so.12").rename(library)
    run = python("-c", f"import runpy; runpy.run_path({shared_library.__file__!r}); print('loaded')")
    assert (run.returncode, run.stdout) == (0, "loaded\n"), run


def test_doctor_says_what_to_install() -> None:
    error = "libcudart.so.13: cannot open; install NVIDIA's runtime for it: pip install '.[cuda13]'"
    assert loading_fix(error) == "pip install '.[cuda13]'"
    assert "--no-binary llama-cpp-python" in loading_fix("libgomp.so.1: cannot open")
