"""Runs specrun on this machine with what Windows or macOS lack missing.

For specrun's own modules, and for no others, the standard library has only what typeshed, from which mypy knows it,
lists for that system; `sys.platform` and `platform.system()` name it; the files of Linux's kernel are not there; the
libraries of C and C++ are not found by their names here; and as on Windows, a file that is open or mapped is neither
deleted nor replaced, and links are not allowed. Text that is read or written in the locale's encoding is an error.
Processes that specrun starts are run in the same way.

Libraries stay those of this machine: what they do on another one is theirs. So does llama.cpp.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import os
import sys
import types
import warnings
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import mypy

ROOT = Path(__file__).parents[1]
SYSTEMS = {"win32": "Windows", "darwin": "Darwin"}
_TYPESHED = Path(mypy.__file__).parent / "typeshed" / "stdlib"
_KERNEL = ("/proc/", "/sys/")
_READS = ("open", "os.listdir", "os.scandir")
_REMOVALS = ("os.remove", "os.rename")
_PROGRAM = """#!{python} -Xwarn_default_encoding
import sys
sys.path.insert(0, {root!r})
from tests.other_system import run
run({system!r})
"""


def command(folder: Path, system: str) -> list[str]:
    """What runs the command as on `win32` or `darwin`, with arguments after it. folder: for a file of its own."""
    python = folder / f"python-on-{system}"
    if not python.exists():
        python.write_text(_PROGRAM.format(python=sys.executable, root=str(ROOT), system=system))
        python.chmod(0o755)
    return [str(python), "-c", "from specrun.cli import main; main()"]


def run(system: str) -> None:
    """Run what stands after -c, as Python does. All options before it are those that this process has already."""
    _Other(system, program=str(Path(sys.argv[0]).absolute())).begin()
    place = sys.argv.index("-c")
    code, sys.argv = sys.argv[place + 1], ["-c", *sys.argv[place + 2 :]]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


class _Other:
    """This process as on another system. program: what specrun starts as Python."""

    def __init__(self, system: str, program: str) -> None:
        self._system = system
        self._changed: dict[str, dict[str, Any]] = {
            "sys": {"platform": system, "executable": program},
            "platform": {"system": lambda: SYSTEMS[system]},
            "ctypes": {"CDLL": partial(_library, system)},
        }
        self._seen: dict[str, types.ModuleType | None] = {}
        self._import, self._stat = builtins.__import__, os.stat
        self._is_looking = False

    def begin(self) -> None:
        builtins.__import__ = self._imported
        os.stat = self._state  # type: ignore[assignment]  # it raises no audit event
        sys.addaudithook(self._audited)
        warnings.simplefilter("ignore", EncodingWarning)
        warnings.filterwarnings("error", category=EncodingWarning, module=r"specrun\.")

    def _imported(
        self, name: str, importer: Any = None, local: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        module = self._import(name, importer, local, fromlist, level)
        first = name.partition(".")[0]
        if level or first not in sys.stdlib_module_names or not _is_specrun(importer):
            return module
        key = name if fromlist else first
        if key not in self._seen:
            self._seen[key] = self._as_there(key, module)
        if (seen := self._seen[key]) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return seen

    def _as_there(self, name: str, module: types.ModuleType) -> types.ModuleType | None:
        there = _names(name, self._system)
        missing = _names(name, "linux") - there
        if not there:
            return None
        return _Module(module, missing, self._changed.get(name, {})) if missing or name in self._changed else module

    def _state(self, path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if not self._is_looking and str(path).startswith(_KERNEL) and _specrun_asks():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return self._stat(path, *arguments, **named)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_looking or event not in (*_READS, *_REMOVALS, "os.symlink") or not _specrun_asks():
            return
        self._is_looking = True
        try:
            paths = [os.fsdecode(path) for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike)]
            if event in _READS and paths and paths[0].startswith(_KERNEL):
                raise FileNotFoundError(2, "No such file or directory", paths[0])
            if self._system == "win32" and event == "os.symlink":
                raise OSError(22, "A required privilege is not held by the client", paths[1])
            if self._system == "win32" and event in _REMOVALS:
                for path in filter(_is_in_use, paths):
                    raise PermissionError(13, "The process cannot access the file because it is being used", path)
        finally:
            self._is_looking = False


class _Module(types.ModuleType):
    """A module without some of its names, and with others that have other values."""

    def __init__(self, module: types.ModuleType, missing: set[str], changed: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _missing=missing, **changed)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["_missing"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)


def _names(module: str, system: str) -> set[str]:
    """What a module of the standard library has on a system, as far as that depends on the system."""
    return set(_defined(_stub(module).body, types.SimpleNamespace(platform=system, version_info=sys.version_info)))


@cache
def _stub(module: str) -> ast.Module:
    path = _TYPESHED.joinpath(*module.split("."))
    return ast.parse((path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")).read_text("utf-8"))


def _defined(body: list[ast.stmt], system: types.SimpleNamespace) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            holds = eval(compile(ast.Expression(node.test), "typeshed", "eval"), {"sys": system, "TYPE_CHECKING": True})
            yield from _defined(node.body if holds else node.orelse, system)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name) and target.id != "__all__")
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield "*"


def _library(system: str, name: str | None, *arguments: Any, **named: Any) -> ctypes.CDLL:
    """ctypes.CDLL, which finds no library of this system by its name. On Windows C's own needs one."""
    if (name is None and system == "win32") or (name and "/" not in name):
        raise OSError(f"Could not find module {name!r}")
    return ctypes.CDLL(name, *arguments, **named)


def _is_specrun(importer: Any) -> bool:
    return bool(importer) and str(importer.get("__name__")).partition(".")[0] == "specrun"


def _specrun_asks() -> bool:
    """Whether specrun's code calls, through whatever modules of the standard library."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame:
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name not in sys.stdlib_module_names:
            return name == "specrun"
        frame = frame.f_back
    return False


def _is_in_use(path: str) -> bool:
    """Whether this process has the file open or mapped."""
    try:
        wanted = Path(path).stat()
    except OSError:
        return False
    for opened in Path("/proc/self/fd").iterdir():
        try:
            if os.path.samestat(wanted, opened.stat()):
                return True
        except OSError:  # it is closed by now
            continue
    name = os.path.realpath(path)
    return any(line.split(maxsplit=5)[5:] == [name] for line in Path("/proc/self/maps").read_text("utf-8").splitlines())
