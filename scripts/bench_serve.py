"""Speed of `specrun serve` with several clients at once, beside `specrun generate` and llama-server with slots.

    python scripts/bench_serve.py --target T.gguf --draft D.gguf [--clients 1,2,4,8] [-n 64] [-- OPTIONS...]

Each client streams answers to --requests prompts of `specrun bench`, one after the other, and all clients begin at the
same moment. "total" is all tokens over the time until the last client has its last; "each" is the median over the
answers of their tokens over the time that their client waited for them, the queue included; "first" is the median and
the longest time to the first piece of text. Every prompt is read whole, by all servers, and no text ends before its
last token. Options after -- go to specrun, for example: -- --speculate tree.

"generate" compares texts, too, so it needs weights whose texts do not depend on the passes (Q8_0 on a CPU, or --exact);
it is the share of `specrun generate`'s speed that one client of the server has, on the same texts, measured in
turn, prompts included. --servers also names llama-server (`peers.py` says where it comes from), plain and with its own
drafting, with as many slots as there are clients.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import OK, HTTPConnection
from pathlib import Path
from typing import Any

from peer_tools import build, tools
from peer_tools.errors import PeerError, ToolError
from peer_tools.running import Runner
from peer_tools.tools import Job, Row

from specrun.bench import shipped
from specrun.hardware.cpu import usable_cores

COMPLETIONS = "/v1/completions"
SPECRUN = "specrun"
PEERS = {
    "llama-server": Row(tools.SERVER),
    "llama-server-drafting": Row(tools.SERVER, ("--spec-type", "draft-simple", "--spec-draft-n-max", "3")),
}


@dataclass(frozen=True)
class Answer:
    """tokens: written. first: seconds until the first piece of text. seconds: until the last. text: the answer."""

    tokens: int
    first: float
    seconds: float
    text: str


@dataclass(frozen=True)
class Load:
    """What several clients had of a server: their answers, and the seconds until the last of them."""

    n_clients: int
    answers: list[Answer]
    seconds: float

    @property
    def total(self) -> float:
        """Tokens a second of all clients together."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    def as_json(self) -> dict[str, Any]:
        """The numbers of a row."""
        firsts = [answer.first for answer in self.answers]
        return {
            "clients": self.n_clients,
            "total": round(self.total, 2),
            "each": round(statistics.median(answer.tokens / answer.seconds for answer in self.answers), 2),
            "first": round(statistics.median(firsts), 3),
            "longest_first": round(max(firsts), 3),
            "tokens": sum(answer.tokens for answer in self.answers),
        }


def ask(client: HTTPConnection, body: dict[str, Any]) -> Answer:
    """Stream one answer. It is looked at when it is complete: the client shares the cores with the server."""
    started = time.perf_counter()
    client.request("POST", COMPLETIONS, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    response = client.getresponse()
    pieces = []
    while data := response.read1(1 << 16):
        pieces.append((time.perf_counter() - started, data))
    seconds = time.perf_counter() - started
    if response.status != OK:
        raise ToolError(f"answered with {response.status}: {pieces[0][1].decode()}")
    first, text, tokens, rest = seconds, "", 0, b""
    for moment, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise ToolError(f"answered with an error: {chunk['error']}")
            new = "".join(choice["text"] for choice in chunk["choices"])
            first = moment if new and not text else first
            text += new
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return Answer(tokens, first, seconds, text)


def load(url: str, bodies: Sequence[Sequence[dict[str, Any]]]) -> Load:
    """A client for each list of requests, all at once."""
    answers: list[Answer] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(bodies) + 1)

    def run(own: Sequence[dict[str, Any]]) -> None:
        try:
            with closing(HTTPConnection(url.removeprefix("http://"))) as client:
                barrier.wait()
                answers.extend([ask(client, body) for body in own])
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=[own]) for own in bodies]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise ToolError(f"failed: {failures[0]}")
    return Load(len(bodies), answers, time.perf_counter() - started)


class Bench:
    """The measurements that the options ask for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._prompts = [prompt.text for prompt in shipped()]
        self._models = ["--target", str(options.target), "--draft", str(options.draft)]
        self._models += ["-t", str(options.threads), "-c", str(options.ctx_size), *options.extra]

    @contextmanager
    def _specrun(self) -> Iterator[str]:
        """`specrun serve`, and its URL."""
        command = [sys.executable, "-m", "specrun", "serve", "--port", "0", "--queue", "64", *self._models]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr
            lines = []
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"listens on (http://\S+);", line):
                    break
            else:
                raise ToolError(f"specrun did not start: {''.join(lines)}")
            yield found[1]
        finally:
            process.terminate()
            process.communicate()

    def _bodies(self, n_clients: int, ends: bool = False) -> list[list[dict[str, Any]]]:
        """The requests of each client. ends: whether a text may end before its last token."""
        options = self._options
        common = {"max_tokens": options.max_tokens, "temperature": options.temp, "seed": 0, "cache_prompt": False}
        common |= {"stream_options": {"include_usage": True}, "ignore_eos": not ends}
        prompts = [self._prompts[i % len(self._prompts)] for i in range(n_clients * options.requests)]
        return [[{"prompt": prompt, **common} for prompt in prompts[i::n_clients]] for i in range(n_clients)]

    def loads(self, url: str) -> Iterator[Load]:
        """One for each number of clients, after a warm-up."""
        load(url, self._bodies(1))
        for n_clients in self._options.clients:
            yield load(url, self._bodies(n_clients))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each server and number of clients."""
        for name in self._options.servers:
            if name in PEERS:
                yield from self._peer(PEERS[name])
                continue
            with self._specrun() as url:
                for found in self.loads(url):
                    yield {"server": "specrun serve", **found.as_json()}

    def _peer(self, row: Row) -> Iterator[dict[str, Any]]:
        options = self._options
        programs = build.programs(build.default_folder(), [tools.SERVER], usable_cores())
        job = Job(options.target.absolute(), options.draft.absolute(), options.max_tokens, options.temp, 0,
                  options.threads, options.ctx_size * max(options.clients), True)  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(programs, job, Path(folder))
            for n_clients in options.clients:
                with runner.server(row, n_clients) as port:
                    url = f"http://127.0.0.1:{port}"
                    load(url, self._bodies(1))
                    yield {"server": str(row), **load(url, self._bodies(n_clients)).as_json()}

    def of_generate(self) -> dict[str, Any]:
        """One client's speed as a share of `specrun generate`'s, on the same texts, in turn."""
        shares, pieces = [], []
        (bodies,) = self._bodies(1, ends=True)
        with self._specrun() as url:
            load(url, [bodies])
            for _ in range(self._options.repeat):
                generated, rate = self._generated([str(body["prompt"]) for body in bodies])
                served = load(url, [bodies])
                if generated != [answer.text for answer in served.answers]:
                    raise ToolError("the server wrote other texts than `specrun generate`")
                own = sum(answer.tokens for answer in served.answers) / sum(a.seconds for a in served.answers)
                shares.append(own / rate)
                pieces.append((rate, own))
        return {
            "generate": round(statistics.median(rate for rate, _ in pieces), 2),
            "serve": round(statistics.median(own for _, own in pieces), 2),
            "share": round(statistics.median(shares), 4),
            "shares": [round(share, 4) for share in shares],
        }

    def _generated(self, prompts: Sequence[str]) -> tuple[list[str], float]:
        """The texts of `specrun generate`, and its tokens a second with the reading of the prompts. Another prompt is
        answered first, as passes are slower in a process that has just begun. It must be another one: what the cache
        holds of a prompt is not read again, while the server is asked to read every prompt whole.
        """
        options = self._options
        command = [sys.executable, "-m", "specrun", "generate", "--jsonl", "--raw", "-n", str(options.max_tokens)]
        command += ["--temp", str(options.temp), "--seed", "0", *self._models]
        lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in [self._prompts[-1], *prompts])
        run = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        if run.returncode:
            raise ToolError(f"specrun generate failed: {run.stderr}")
        answers = [json.loads(line) for line in run.stdout.splitlines()][1:]
        seconds = sum(answer["prompt_seconds"] + answer["seconds"] for answer in answers)
        return [answer["text"] for answer in answers], sum(answer["completion_tokens"] for answer in answers) / seconds


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| server | clients | total tokens/s | each | first text, s (longest) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['server']} | {row['clients']} | {row['total']:.1f} | {row['each']:.1f} "
        f"| {row['first']:.2f} ({row['longest_first']:.2f}) |"
        for row in rows
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="GGUF", help="the model that writes")
    add("--draft", type=Path, required=True, metavar="GGUF", help="the model that drafts")
    add("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8], metavar="LIST")
    add("--requests", type=int, default=2, metavar="N", help="of each client, one after the other (2)")
    add("--max-tokens", "-n", type=int, default=64, metavar="N", help="tokens of an answer (64)")
    add("--temp", type=float, default=0.0, metavar="T", help="0 is greedy")
    add("--threads", "-t", type=int, default=usable_cores(), metavar="N")
    add("--ctx-size", "-c", type=int, default=2048, metavar="N", help="of one client (2048)")
    add("--repeat", type=int, default=3, metavar="N", help="times that `specrun generate` is compared (3)")
    add("--only", choices=("clients", "generate"), help="one of the two parts")
    names = [SPECRUN, *PEERS]
    add(
        "--servers", type=lambda text: text.split(","), default=[SPECRUN], metavar="LIST", help=f"of {', '.join(names)}"
    )
    add("--output", "-o", choices=("table", "json"), default="table")
    given, extra = sys.argv[1:], []
    if "--" in given:
        extra = given[given.index("--") + 1 :]
        given = given[: given.index("--")]
    options = parser.parse_args(given)
    options.extra = extra
    if unknown := set(options.servers) - set(names):
        parser.error(f"--servers is a list of {', '.join(names)}; got {unknown.pop()}")
    return options


def main() -> int:
    options = arguments()
    bench = Bench(options)
    try:
        rows = [] if options.only == "generate" else list(bench.rows())
        share = None if options.only == "clients" else bench.of_generate()
    except (PeerError, ToolError) as error:
        print(f"bench_serve.py: {error}", file=sys.stderr)
        return 1
    if options.output == "json":
        print(json.dumps({"clients": rows, "generate": share}, indent=1))
        return 0
    if rows:
        print(table(rows))
    if share:
        print(f"specrun generate {share['generate']} tokens/s, one client {share['serve']}: {share['share']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
