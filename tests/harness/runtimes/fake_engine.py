"""A Docker engine that says what a test wants it to say, or nothing at all.

Speaks just enough HTTP over a unix socket for the docker package: one request a connection.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HANG = object()
"""As an answer: none, ever."""

STREAM = object()
"""As an answer: an open stream in which nothing happens."""

Answer = Any
"""A JSON value (status 200), (status, JSON value), :data:`HANG` or :data:`STREAM`."""

VERSION = {"Version": "0.0-fake", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}


class FakeEngine:
    """``answers`` maps "METHOD /path" (without the API version and query) to an answer or to a
    function of the path; ``asked`` lists the requests in order."""

    def __init__(self, path: Path, answers: dict[str, Answer | Callable[[str], Answer]]) -> None:
        self.url = f"unix://{path}"
        self.answers = {"GET /version": VERSION, **answers}
        self.asked: list[str] = []
        self._hanging: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(32)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and drop whoever still waits for an answer."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in self._hanging:
            connection.close()

    def _serve(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            chunk = connection.recv(65536)
            if not chunk:
                connection.close()
                return
            request += chunk
        method, target, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
        path = target.partition("?")[0]
        if path.startswith("/v1."):
            path = "/" + path.split("/", 2)[2]
        key = f"{method} {path}"
        self.asked.append(key)
        answer = self.answers.get(key, (404, {"message": f"the fake has no {key}"}))
        if callable(answer):
            answer = answer(path)
        if answer is HANG or answer is STREAM:
            self._hanging.append(connection)
            if answer is STREAM:
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            return
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        with connection, suppress(OSError):
            connection.sendall(head.encode() + data)
