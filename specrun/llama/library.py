"""Initialises llama.cpp's shared library, routes its log into Python's logging and turns its errors into specrun's."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import ntpath
import os
import re
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import llama_cpp.llama_cpp

from specrun import interrupts
from specrun.catalog.gguf_file import file_identity
from specrun.display_text import one_line, visible
from specrun.errors import LlamaError, ModelFileError, OutOfMemoryError, SpecrunError, UsageError
from specrun.llama import offload_threshold
from specrun.llama.shared_library import ggml
from specrun.locations import file_bytes
from specrun.processes import child_process

Own = TypeVar("Own")

logger = logging.getLogger("specrun.llama")

# ggml_log_level -> logging level; 5 continues the previous message.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5
_LIBRARY = re.compile(r"^(lib)?(ggml|llama).*\.(so|dylib|dll)")
_LIBRARY_BYTES = 2**16  # at either end of a library, where linkers write which build it is
_LOG_PREFIX = re.compile(r"^(\w+: |error loading model[\w ]*: )*")
_LACKS_MEMORY = re.compile(
    r"allocat|bad_alloc|alloc_failed|out ?of ?(device|host|pool)? ?memory|insufficient memory", re.I
)
_WHAT = re.compile(r"(?:what\(\): *|instance of ')([^'\n]+)")  # as the C++ library tells of an exception
_CPP_LIBRARY = "libstdc++.so.6"
_STDERR = 2  # the file descriptor that C code writes to; sys.stderr may be another
_SIGBUS = getattr(signal, "SIGBUS", None)  # Windows has none

# Part of llama.cpp's error message -> advice.
_LOAD_ADVICE = {
    "not within the file bounds": "download the file again",
    "failed to read": "the file is incomplete, download it again",
    "unexpectedly reached end of file": "the file is incomplete, download it again",
    "' not found": "the file lacks weights (a vocabulary-only file?), choose another",
    "missing tensor": "the file lacks weights (a vocabulary-only file?), choose another",
    "unknown model architecture": "if it writes text, upgrade llama-cpp-python, which may know it by now",
    "allocate": "not enough memory, choose a smaller quantization or fewer --gpu-layers",
}

_listeners: list[deque[str]] = []  # one for each open `CapturedErrors`; two passes may run at the same time
_explainers: dict[str, Callable[[str], str]] = {}
_mapped: dict[Path, int] = {}  # bytes of each model file in use before it was loaded
_last_level = logging.DEBUG
_shown = _STDERR  # where the user sees what is written, also while `captured_stderr` has another file in its place


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    global _last_level
    if level != _CONTINUE:
        _last_level = _LEVELS.get(level, logging.DEBUG)
    line = text.decode("utf-8", errors="replace").rstrip()
    if not line:
        return
    if _last_level >= logging.ERROR:
        for errors in list(_listeners):
            errors.append(line)
    logger.log(_last_level, "%s", visible(line))  # it may be metadata of a file, which hold anything


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator, unused-ignore]
def _on_abort(message: bytes) -> None:
    """Called when an assertion fails in llama.cpp: end the process with one line instead of a page of backtrace."""
    said = " ".join(message.decode("utf-8", errors="replace").split())
    file, _, assertion = ntpath.splitdrive(said)[1].partition(":")  # a drive has a colon, too
    if explain := _explainers.get(Path(file).name):
        end_process(LlamaError(explain(assertion)))
    logged = [line for errors in list(_listeners) for line in errors]
    _give_up(logged, f"{Path(file).name}:{assertion}")


@ctypes.CFUNCTYPE(None)  # type: ignore[untyped-decorator, unused-ignore]
def _on_uncaught() -> None:
    """Called when C++ code throws what nobody catches. Only the C++ library knows what that is: its own handler writes
    it to stderr and aborts, and the words are read when the signal comes.
    """
    global _shown
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
        _shown = os.dup(_STDERR) if _shown == _STDERR else _shown
        os.dup2(file.fileno(), _STDERR)

        @ctypes.CFUNCTYPE(None, ctypes.c_int)  # type: ignore[untyped-decorator, unused-ignore]
        def on_signal(_signal: int) -> None:
            file.seek(0)
            told = file.read().decode(errors="replace")
            what = one_line(_WHAT.findall(told)[-1] if _WHAT.search(told) else told)
            _give_up([what], what)

        _c_signal()(signal.SIGABRT, ctypes.cast(on_signal, ctypes.c_void_p))
        ctypes.CDLL(_CPP_LIBRARY)["_ZN9__gnu_cxx27__verbose_terminate_handlerEv"]()
    _give_up([], "an exception that it does not catch")


def _give_up(said: Iterable[str], why: str) -> NoReturn:
    gave_up = f"llama.cpp gave up ({one_line(why)}); the model file may be broken, --debug shows more"
    end_process(memory_failure(said) or LlamaError(gave_up))


def explain_aborts(file: str, explain: Callable[[str], str]) -> None:
    """From now on, where llama.cpp gives up in this source file, the line is what `explain` makes of its message."""
    _explainers[file] = explain


def _set_uncaught(handler: Any) -> int | None:
    """Let C++ call this, std::set_terminate; returns what it called before, None without GCC's C++ library."""
    try:
        set_terminate = ctypes.CDLL(_CPP_LIBRARY)["_ZSt13set_terminatePFvvE"]
    except (OSError, AttributeError):
        return None
    set_terminate.restype = ctypes.c_void_p
    return int(set_terminate(ctypes.cast(handler, ctypes.c_void_p)) or 0)


def end_process(error: SpecrunError) -> NoReturn:
    """End the process at once, with one line and the error's exit code: while C code runs nothing can be raised."""
    with contextlib.suppress(OSError):
        child_process.answer_with(error)
        interrupts.report_sudden_end(str(error), _shown)
    os._exit(error.exit_code)


def watch_for_lost_pages(files: Iterable[Path]) -> None:
    """From now on a lost page of any of these mapped files ends the process with one line instead of a crash.

    Where the system cannot supply a page of a mapping any more, because the file was cut short or its disk fails, it
    sends SIGBUS to the thread that reads it, which is in the middle of a pass. Nothing can be computed then.
    """
    _mapped.update({file: file_bytes(file) for file in files})
    # In C, as Python's own handlers only run when the operation that failed is over. Another program's handler,
    # Python's faulthandler for example, stays.
    if _SIGBUS and (before := _c_signal()(_SIGBUS, ctypes.cast(_on_lost_page, ctypes.c_void_p))):
        _c_signal()(_SIGBUS, before)


@ctypes.CFUNCTYPE(None, ctypes.c_int)  # type: ignore[untyped-decorator, unused-ignore]
def _on_lost_page(_signal: int) -> None:
    for path, n_bytes in _mapped.items():
        if path.exists() and file_bytes(path) < n_bytes:
            end_process(LlamaError(f"{path} was cut short while it was in use; download it again"))
    try:
        interrupts.report_sudden_end(
            "memory that is in use, or a part of a file, cannot be read any more; check the disk of the model, and "
            "with layers on a GPU its driver"
        )
    finally:
        _c_signal()(_SIGBUS, None)  # the operation fails again, this time as it would have done without this handler


def _c_signal() -> Any:
    """C's function `signal`, for handlers that do not wait until Python goes on."""
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    return install


logger.addHandler(logging.NullHandler())
logger.propagate = False
llama_cpp.llama_log_set(_on_log, ctypes.c_void_p(0))
ggml.ggml_set_abort_callback(_on_abort)
_prints_backtrace = _set_uncaught(_on_uncaught)


@cache
def start() -> None:
    """Let llama.cpp look for its backends, once a process, before anything asks for devices or loads a model.

    Importing does not do that, because the backends read their settings from the environment at this moment.
    """
    offload_threshold.start()
    llama_cpp.llama_backend_init()


class Closing:
    """What its `with` block closes in the end."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free what it holds. Safe to call twice."""
        raise NotImplementedError


class CapturedErrors:
    """Collects the last error lines that llama.cpp logs in any thread, until the block ends."""

    # A generator would do; but every pass is inside such a block, and entering a generator takes longer.
    def __enter__(self) -> deque[str]:
        self._lines: deque[str] = deque(maxlen=32)
        _listeners.append(self._lines)
        return self._lines

    def __exit__(self, *_: object) -> None:
        _listeners[:] = [other for other in _listeners if other is not self._lines]


@contextmanager
def captured_stderr() -> Iterator[list[bytes]]:
    """Collect what llama.cpp prints directly to stderr until the block ends; only then is the list filled."""
    global _shown
    printed: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        try:
            kept = os.dup(_STDERR)
        except OSError:  # stderr is closed, so nothing can be printed
            yield printed
            return
        try:
            _shown = kept
            os.dup2(file.fileno(), _STDERR)
            yield printed
        finally:
            os.dup2(kept, _STDERR)
            _shown = _STDERR
            os.close(kept)
            file.seek(0)
            printed.append(file.read())


def load_failure(path: Path, errors: Sequence[str]) -> ModelFileError | OutOfMemoryError:
    """The error for a model that llama.cpp did not load, with advice."""
    reason = next((line for line in errors if "error loading model" in line or "failed" in line), "unknown reason")
    reason = _LOG_PREFIX.sub("", reason)
    text = " ".join(errors)
    advice = next((advice for sign, advice in _LOAD_ADVICE.items() if sign in text), "--debug shows llama.cpp's log")
    failure = OutOfMemoryError if _LACKS_MEMORY.search(text) else ModelFileError
    return failure(f"{path} cannot be loaded: {one_line(reason)}; {advice}")


def context_failure(what: str, errors: Sequence[str]) -> LlamaError | UsageError:
    """The error for a context that llama.cpp did not create, with advice. what: describes the context."""
    reason = errors[-1] if errors else ""
    refused = next((line for line in errors if "cache type" in line or "V cache" in line), None)
    if refused:
        return UsageError(f"llama.cpp could not create {what} ({refused}); choose another --cache-type-k or -v")
    detail = f" ({reason})" if reason else ""
    if not errors or any(map(_LACKS_MEMORY.search, errors)):
        return OutOfMemoryError(f"llama.cpp could not create {what}{detail}; try a smaller --ctx-size")
    return LlamaError(f"llama.cpp could not create {what}{detail}; --debug shows its log")


def memory_failure(errors: Iterable[str]) -> OutOfMemoryError | None:
    """The error for memory that ran out while llama.cpp computed, in the words of the driver or of llama.cpp.

    errors: lines that were logged meanwhile. None if they report no failed allocation.
    """
    words = next(filter(_LACKS_MEMORY.search, errors), None)
    return out_of_memory(words) if words else None


def out_of_memory(why: str) -> OutOfMemoryError:
    """The error for memory that ran out while llama.cpp computed, with advice."""
    reason = one_line(_LOG_PREFIX.sub("", why.strip()))
    return OutOfMemoryError(f"llama.cpp ran out of memory ({reason}); try fewer --gpu-layers or a smaller --ctx-size")


def show_log() -> None:
    """Send llama.cpp's own log to stderr (`--debug`)."""
    logger.setLevel(logging.DEBUG)
    logger.addHandler(logging.StreamHandler())
    ggml.ggml_set_abort_callback(None)
    if _prints_backtrace:
        _set_uncaught(_prints_backtrace)


def backends() -> list[str]:
    """Names of the ggml backends in this build, e.g. `["CUDA", "CPU"]`. An RPC server that was added is none."""
    start()
    backends = map(ggml.ggml_backend_reg_get, range(ggml.ggml_backend_reg_count()))
    names = [ggml.ggml_backend_reg_name(backend).decode() for backend in backends]
    return [name for name in names if not name.startswith("RPC[")]


def build() -> str:
    """Version of llama.cpp, e.g. `0.5.0-dev`."""
    return str(llama_cpp.llama_version().decode())


def bindings_version() -> str:
    """Version of llama-cpp-python."""
    return str(llama_cpp.__version__)


def identity() -> dict[str, str]:
    """This build of llama.cpp: its versions, and the identity of its libraries, by what people call them."""
    libraries = file_identity(files(), _LIBRARY_BYTES)[:16]
    return {"llama.cpp": build(), "llama-cpp-python": bindings_version(), "libraries": libraries}


def files() -> list[Path]:
    """The shared libraries of this build, llama.cpp's and ggml's, sorted, each once."""
    paths = Path(llama_cpp.llama_cpp._lib._name).parent.iterdir()
    return sorted({path.resolve() for path in paths if path.suffix != ".py" and _LIBRARY.search(path.name)})


def has_gpu() -> bool:
    """Whether this build has a GPU backend."""
    start()
    return bool(llama_cpp.llama_supports_gpu_offload())
