"""A server under steady load: clients that stream without a pause, one that leaves, and one that sends slowly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2

from tests.soak.serving import CHAT, Clients, Outcome, look, server, text_of
from tests.waiting import TIMEOUT_S

_BYTE_S = 0.1  # between the bytes of the slow client
_STAY_S = 1.0  # until the other leaves
_PROMPTS = tuple(f"def f{i}(names, depth={i}):" for i in range(8))


@dataclass
class Load:
    """alone_s, after_s: seconds in which a short request was answered before the load, and after it."""

    outcome: Outcome
    alone_s: float
    after_s: float = 0.0


class Steady(Clients):
    """Clients that go on until `stop`. first: the first text of each prompt, which the others must equal."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stop = threading.Event()
        self._first: dict[str, str] = {}

    def begin(self) -> list[threading.Thread]:
        ways = [*(partial(self._streams, prompt) for prompt in _PROMPTS), self._leaves, self._drips]
        threads = [threading.Thread(target=self._told, args=[way]) for way in ways]
        for thread in threads:
            thread.start()
        return threads

    def short(self) -> float:
        """Seconds until a short request is answered."""
        began = time.perf_counter()
        body = {**_body("x = ["), "max_tokens": 1}
        assert httpx2.post(f"{self.url}{CHAT}", json=body, timeout=TIMEOUT_S, trust_env=False).status_code == 200
        return time.perf_counter() - began

    def _told(self, way: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                way()
        except Exception as error:
            self.outcome.wrong.append(f"{type(error).__name__}: {error}")

    def _streams(self, prompt: str) -> None:
        asked = {"json": _body(prompt), "timeout": TIMEOUT_S, "trust_env": False}
        with httpx2.stream("POST", f"{self.url}{CHAT}", **asked) as told:
            assert told.status_code == 200, told.read()
            text = text_of(list(told.iter_lines()))
        assert self._first.setdefault(prompt, text) == text, f"another text for {prompt}"
        self.outcome.counts["streamed"] += 1

    def _leaves(self) -> None:
        with self.sent({**_body("class Tree:"), "max_tokens": 800}) as connection:
            connection.recv(1)
            self.stop.wait(_STAY_S)
        self.outcome.counts["left"] += 1

    def _drips(self) -> None:
        data = json.dumps({**_body("x = ["), "max_tokens": 4, "stream": False}).encode()
        with socket.create_connection(self.address, TIMEOUT_S) as connection:
            fields = f"Host: localhost\r\nConnection: close\r\nContent-Length: {len(data)}"
            head = f"POST {CHAT} HTTP/1.1\r\n{fields}\r\n\r\n"
            for byte in head.encode() + data:
                connection.sendall(bytes([byte]))
                if self.stop.wait(_BYTE_S):
                    return
            assert connection.recv(12) == b"HTTP/1.1 200"
        self.outcome.counts["dripped"] += 1


def _body(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "stream": True}


def under_load(seconds: float) -> Load:
    """Eight clients that stream, and the two others, for so long. Memory is looked at after a third, and at the end."""
    with server() as (url, process):
        clients = Steady(url)
        load = Load(clients.outcome, alone_s=clients.short())
        threads = clients.begin()
        time.sleep(seconds / 3)
        clients.outcome.looks.append(look(process))
        time.sleep(seconds * 2 / 3)
        clients.stop.set()
        for thread in threads:
            thread.join()
        load.after_s = clients.short()
        clients.outcome.looks.append(look(process))
        clients.check_idle()
        return load
