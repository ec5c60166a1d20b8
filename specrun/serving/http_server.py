"""Runs the web application in a thread of its own, on a socket that is opened before anything else is done."""

from __future__ import annotations

import errno
import logging
import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from specrun.errors import SpecrunError, UsageError

_MOST_CONNECTIONS = 128  # each may bring a body of the largest size
_KEEP_CONNECTION_S = 75  # longer than clients do, so that they never use a connection that is being closed
# An address that stands for all of this machine's -> one far away, from those that are for documentation only.
_ALL_ADDRESSES = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}
_SECONDS_TO_END = 10  # for clients to read the end of their answers


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections can wait from now on. port: 0 takes a free one.

    Raises UsageError if the address does not belong to this machine, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        known = {
            errno.EADDRINUSE: f"port {port} of {host} is taken by another program; give another --port",
            errno.EACCES: f"this user may not open port {port}; give a --port above 1023",
        }
        why = known.get(error.errno or 0, f"--host {host} is no address of this machine ({error.strerror})")
        raise UsageError(why) from error
    except UnicodeError as error:  # of Python's codec for names, as for an empty part or a byte that is not UTF-8
        raise UsageError(f"--host {host} is no name of a machine; give an address such as 127.0.0.1") from error


def url(host: str, bound: socket.socket) -> str:
    """Where the server is found."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"


def chat_url(bound: socket.socket) -> str:
    """Where a browser finds the page; if the server listens on all addresses, where one on another machine does."""
    host: str = bound.getsockname()[0]
    if host in _ALL_ADDRESSES:
        with socket.socket(bound.family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((_ALL_ADDRESSES[host], 9))  # sends nothing, but tells which address would
                host = probe.getsockname()[0]
            except OSError:  # no network
                host = "localhost"
    return url(host, bound)


class HttpServer:
    """A context manager: inside it, `app` answers on the socket. It ends with the block, or with `stop`."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_CONNECTION_S,
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        logging.getLogger("uvicorn.error").disabled = True  # `app` reports failures itself, and answers bad requests
        self._server = uvicorn.Server(config)
        self._bound = bound
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether requests are answered. It ends by itself only if it fails."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more requests, and wait some seconds until all answers are sent. Safe to call twice.

        Raises SpecrunError if the server had failed before.
        """
        self._server.should_exit = True
        try:
            self._thread.join()
        except BaseException:  # a second Ctrl-C
            self._server.force_exit = True
            self._thread.join()
            raise
        failure, self._failure = self._failure, None
        if failure:
            raise SpecrunError(f"the HTTP server failed: {failure}") from failure

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._bound])
        except BaseException as error:
            self._failure = error
