"""A server under clients that go away, send nonsense and read slowly: every text right, no place lost, memory flat."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil

from tests.waiting import TIMEOUT_S, wait_until

CHAT = "/v1/chat/completions"
_TEXTS = ("import os\n\ndef walk(path):", "class Tree:\n    def add(self, x):", "def é(names, depth=0):", "x = [")
_BAD_BODIES = (b"", b"{", b"[]", b'{"messages": 5}', b'{"messages": [{"role": "user"}]}', b"\xff\xfe", b"[" * 5000)
_SLOW_READ = 64  # bytes that a slow client reads at once
_ENOUGH = 256  # bytes of headers and a first piece


@dataclass(frozen=True)
class Look:
    """rss: bytes of the server's memory. files, threads: their numbers."""

    rss: int
    files: int
    threads: int


@dataclass
class Outcome:
    """counts: what was done. wrong: what was not as it should be. looks: after the warm-up, halfway, at the end."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """The share of the memory after the warm-up that was added since."""
        return self.looks[-1].rss / self.looks[0].rss - 1


@contextmanager
def server(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """`specrun serve` with the embedded pair in a process of its own: its URL, and the process."""
    command = [sys.executable, "-m", "specrun", "serve", "-m", "embedded", "--port", "0", "-t", "1", "--seed", "0"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        found = next(filter(None, (re.search(r"listens on (http://\S+);", line) for line in process.stderr)), None)
        assert found, "the server did not start"
        yield found[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate()


def body(random_: random.Random, known: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """A request for a text that is always the same, and its name: a conversation's first turn, or its second."""
    text = random_.choice(_TEXTS)
    fields = {"seed": random_.randrange(2), "temperature": random_.choice([0, 0.8]), "max_tokens": 32}
    messages = [{"role": "user", "content": text}]
    name = json.dumps([text, fields])
    if name in known and random_.random() < 0.4:
        messages += [{"role": "assistant", "content": known[name]}, {"role": "user", "content": "    return"}]
        name += " again"
    return name, {"messages": messages, **fields}


class Clients:
    """Several clients of the server at `url`, each with requests at random."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self.url = url
        self._seed = seed
        host, port = url.removeprefix("http://").split(":")
        self.address = host, int(port)
        self._known: dict[str, str] = {}  # name of a request -> its text
        self._lock = threading.Lock()
        self.outcome = Outcome()

    def run(self, n_requests: int, n_clients: int = 4) -> None:
        """`n_requests` of all clients together."""
        threads = [
            threading.Thread(target=self._client, args=[self._seed * 1000 + i, n_requests // n_clients])
            for i in range(n_clients)
        ]
        self._seed += 1
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def check_idle(self) -> None:
        """Nothing may be left of the requests: no place in the queue, no answer that is still being written."""
        wait_until(lambda: self._numbers()["specrun_requests_processing"] == 0, "no answer is being written")
        if self._numbers()["specrun_requests_waiting"]:
            self.outcome.wrong.append("a request is stuck in the queue")

    def _numbers(self) -> dict[str, float]:
        text = httpx2.get(f"{self.url}/metrics", trust_env=False, timeout=TIMEOUT_S).text
        return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.e+]+)$", text, re.MULTILINE)}

    def _client(self, seed: int, n_requests: int) -> None:
        random_ = random.Random(seed)
        ways = (self._whole, self._stream, self._whole, self._goes_away, self._bad_body, self._half_body, self._slow)
        with httpx2.Client(base_url=self.url, trust_env=False, timeout=TIMEOUT_S) as client:
            for _ in range(n_requests):
                way = random_.choice(ways)
                try:
                    way(client, random_)
                except Exception as error:
                    self.outcome.wrong.append(f"{way.__name__}: {type(error).__name__}: {error}")
                with self._lock:
                    self.outcome.counts[way.__name__.lstrip("_")] += 1

    def _whole(self, client: httpx2.Client, random_: random.Random) -> None:
        name, asked = self._body(random_)
        response = client.post(CHAT, json=asked)
        if not self._is_full(response.status_code):
            self._check(name, response.json()["choices"][0]["message"]["content"])

    def _stream(self, client: httpx2.Client, random_: random.Random) -> None:
        name, asked = self._body(random_)
        with client.stream("POST", CHAT, json={**asked, "stream": True}) as response:
            if not self._is_full(response.status_code):
                self._check(name, text_of(list(response.iter_lines())))

    def _goes_away(self, _client: httpx2.Client, random_: random.Random) -> None:
        """Leave while the answer is written, or before."""
        with self.sent({**self._body(random_)[1], "max_tokens": 400, "stream": True}) as connection:
            if random_.random() < 0.7:
                connection.recv(random_.choice([1, _ENOUGH]))

    def _bad_body(self, client: httpx2.Client, random_: random.Random) -> None:
        response = client.post(CHAT, content=random_.choice(_BAD_BODIES))
        if response.status_code != 400:
            self.outcome.wrong.append(f"a bad body got {response.status_code}")

    def _half_body(self, _client: httpx2.Client, _random: random.Random) -> None:
        with socket.create_connection(self.address) as connection:
            connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())

    def _slow(self, _client: httpx2.Client, random_: random.Random) -> None:
        """Read an answer in small pieces, with pauses."""
        name, asked = self._body(random_)
        with self.sent({**asked, "stream": True}) as connection:
            data = b""
            while piece := connection.recv(_SLOW_READ):
                data += piece
                time.sleep(0.001)
        if not self._is_full(int(data.split(b" ", 2)[1])):
            self._check(name, text_of(data.decode().splitlines()))

    @contextmanager
    def sent(self, asked: dict[str, Any]) -> Iterator[socket.socket]:
        """A connection on which a request has been sent, and after which the server closes it."""
        data = json.dumps(asked).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(TIMEOUT_S)
            connection.connect(self.address)
            connection.sendall(head.encode() + data)
            yield connection

    def _body(self, random_: random.Random) -> tuple[str, dict[str, Any]]:
        with self._lock:
            return body(random_, self._known)

    def _is_full(self, status: int) -> bool:
        if status == 503:
            with self._lock:
                self.outcome.counts["refused"] += 1
        elif status != 200:
            self.outcome.wrong.append(f"a request got {status}")
        return status != 200

    def _check(self, name: str, text: str) -> None:
        with self._lock:
            self.outcome.counts["compared"] += name in self._known
            if self._known.setdefault(name, text) != text:
                self.outcome.wrong.append(f"another text for {name}")


def text_of(lines: Sequence[str]) -> str:
    """The text of a stream, which must be whole."""
    data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]", f"the stream ends with {data[-1]}"
    choices = [choice for one in data[:-1] for choice in json.loads(one)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def look(process: psutil.Process) -> Look:
    """The server's memory, files and threads now."""
    return Look(process.memory_info().rss, process.num_fds(), process.num_threads())


def soak(n_requests: int, seed: int = 0) -> Outcome:
    """A warm-up of a fifth of the requests, then all of them."""
    with server("--queue", "2", "--cache-ram", "16") as (url, process):
        clients = Clients(url, seed)
        clients.run(max(n_requests // 5, 40))
        clients.check_idle()
        clients.outcome.looks.append(look(process))
        for _ in range(2):
            clients.run(n_requests // 2)
            clients.check_idle()
            clients.outcome.looks.append(look(process))
        return clients.outcome
