"""A hub on this machine: http.server speaking as much of the Hugging Face protocol as its own client asks for.

    GET  /api/models/ORG/REPO[/revision/REV]?blobs=true   files, sizes, SHA-256, licence, commit
    HEAD, GET /ORG/REPO/resolve/REV/FILE                   a redirect to /cdn/SHA256 on another host name
    GET  /cdn/SHA256                                       the bytes, whole or from `Range` on

`faults` are taken one by one by the requests that they match, so that a test says what goes wrong and how often.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A repository: its files, and what is special about it."""

    files: dict[str, bytes]
    commit: str = COMMIT
    licence: str = "apache-2.0"
    gated: bool = False
    private: bool = False
    with_sha256: bool = True
    with_sizes: bool = True
    gguf: dict[str, object] = field(default_factory=dict)
    said: dict[str, object] = field(default_factory=dict)  # what /api/models says instead of the truth


@dataclass
class Fault:
    """What goes wrong with the next request whose path contains `path`.

    status: answer this; with cut: send that many bytes of what was asked for and close; with corrupt: flip its last
    byte; with ignore_range: send everything; with begin: continue there, whatever was asked for; with ok: answer 200
    to a `Range`, too; with page: send this instead; with zipped: compress what nobody asked to have compressed; with
    hold: wait for `hub.go_on` after `cut` bytes. With only_ranges it happens to requests with a `Range` only.
    """

    path: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    corrupt: bool = False
    ignore_range: bool = False
    begin: int | None = None
    ok: bool = False
    zipped: bool = False
    page: bytes | None = None
    only_ranges: bool = False
    hold: bool = False


class Hub:
    """The hub, its repositories, and a log of requests as (method, path, headers)."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.cdn = f"http://localhost:{port}"
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.token: str | None = None
        self.held = threading.Event()
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def add(self, repo: str, files: dict[str, bytes]) -> Repository:
        """A repository with these files."""
        self.repositories[repo] = Repository(files)
        return self.repositories[repo]

    def fault(self, path: str, is_range: bool) -> Fault:
        """The next fault for this path, used up; a Fault that does nothing if there is none."""
        with self._lock:
            for i, fault in enumerate(self.faults):
                if fault.path in path and (is_range or not fault.only_ranges):
                    return self.faults.pop(i)
        return Fault("")

    def ranges(self) -> list[str | None]:
        """The `Range` of every request for bytes."""
        return [headers.get("range") for method, path, headers in self.requests if path.startswith("/cdn/")]


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub without repositories, on a free port."""

    class Handler(_Handler):
        pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    Handler.hub = hub = Hub(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, {k.lower(): v for k, v in self.headers.items()}))
        fault = self.hub.fault(path, "Range" in self.headers)
        if fault.page is not None:
            self._send(200, fault.page, {"Content-Type": "text/html"})
        elif fault.status:
            self._send(fault.status, b"", fault.headers)
        elif path.startswith("/cdn/"):
            self._send_file(path.removeprefix("/cdn/"), fault)
        elif path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if repository := self._repository(repo, revision or "main"):
                self._send(200, json.dumps(_info(repo, repository)).encode(), {"Content-Type": "application/json"})
        else:
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            if repository := self._repository(repo, revision):
                self._redirect(repository, file)

    def _repository(self, repo: str, revision: str) -> Repository | None:
        """The repository, or None after an error was sent."""
        repository = self.hub.repositories.get(repo)
        given = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if given and given != self.hub.token:
            self._refuse(401, None, "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not given):
            self._refuse(404 if given else 401, "RepoNotFound", "Repository not found")
        elif revision not in ("main", repository.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif repository.gated and "/resolve/" in self.path:
            self._refuse(403 if given else 401, "GatedRepo", f"Access to model {repo} is restricted")
        else:
            return repository
        return None

    def _redirect(self, repository: Repository, file: str) -> None:
        if file not in repository.files:
            self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": repository.commit})
            return
        content = repository.files[file]
        sha256 = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": repository.commit, "Location": f"{self.hub.cdn}/cdn/{sha256}"}
        headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        self._send(302, b"", headers)

    def _send_file(self, sha256: str, fault: Fault) -> None:
        contents = (c for repository in self.hub.repositories.values() for c in repository.files.values())
        content = next(c for c in contents if hashlib.sha256(c).hexdigest() == sha256)
        total, begin, status = len(content), 0, 200
        headers = {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}
        if (wanted := self.headers.get("Range")) and not fault.ignore_range:
            begin, status = int(wanted.removeprefix("bytes=").rstrip("-")), 200 if fault.ok else 206
            begin = begin if fault.begin is None else fault.begin
            headers["Content-Range"] = f"bytes {begin}-{total - 1}/{total}"
        if fault.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        body = content[begin:]
        if fault.zipped:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        self._send(status, body, headers, fault)

    def _refuse(self, status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> None:
        coded = {"X-Error-Code": code} if code else {}
        self._send(status, b"", {"X-Error-Message": message} | coded | (headers or {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if fault and fault.cut is not None:
                self.wfile.write(body[: fault.cut])
                self.wfile.flush()
                if not fault.hold:
                    self.close_connection = True
                    return
                self.hub.held.set()
                self.hub.go_on.wait()
                body = body[fault.cut :]
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client went away


def _info(repo: str, repository: Repository) -> dict[str, object]:
    return {
        "id": repo,
        "modelId": repo,
        "sha": repository.commit,
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "tags": ["gguf", f"license:{repository.licence}"],
        "cardData": {"license": repository.licence},
        "downloads": 0,
        "likes": 0,
        "gguf": repository.gguf or None,
        "siblings": [_sibling(name, content, repository) for name, content in repository.files.items()],
        **repository.said,
    }


def _sibling(name: str, content: bytes, repository: Repository) -> dict[str, object]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if not repository.with_sizes:
        return {"rfilename": name}
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git}
    if repository.with_sha256:
        entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 135}
    return entry
