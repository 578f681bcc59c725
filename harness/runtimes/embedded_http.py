"""As much HTTP/1.1 as the proxy's control API needs: JSON in, JSON or text out, keep-alive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

BODY_BYTES_MAX = 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
_REASONS = {200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 403: "Forbidden"}
_REASONS |= {404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 500: "Server Error"}

Answer = tuple[int, Any]
"""Status, and a JSON value, a text, or None for an empty body."""
Handler = Callable[[str, str, bytes], Awaitable[Answer]]
"""(method, path, body) to the answer; raises :class:`ApiError`."""


class ApiError(Exception):
    """A request that cannot be granted: HTTP status and Toxiproxy's own words."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


async def serve(answer: Handler, host: str, port: int) -> asyncio.Server:
    """Listen for control connections. Raises ``OSError`` when the address cannot be had."""
    return await asyncio.start_server(
        partial(_connection, answer), host, port, limit=HEAD_BYTES_MAX
    )


async def _connection(
    answer: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One control connection: any number of requests, one after the other."""
    try:
        while await _exchange(answer, reader, writer):
            pass
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # the caller is gone, or does not speak HTTP: nobody to tell
    finally:
        writer.close()


async def _exchange(
    answer: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    first, *head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {k.strip().lower(): v.strip() for k, _, v in (h.partition(":") for h in head)}
    length = int(headers.get("content-length") or 0)
    try:
        if length > BODY_BYTES_MAX:
            raise ApiError(400, "bad request body: too long")
        body = await reader.readexactly(length)
        # A web page must not be able to drive the proxy; Toxiproxy has the same rule.
        if headers.get("user-agent", "").startswith("Mozilla/"):
            raise ApiError(403, "User agent not allowed")
        status, value = await answer(method, path, body)
    except ApiError as error:
        status, value = error.status, {"error": str(error), "status": error.status}
    text = b"" if value is None else _text(value)
    kind = "text/plain" if isinstance(value, str) else "application/json"
    stay = headers.get("connection", "").lower() != "close" and length <= BODY_BYTES_MAX
    writer.write(
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"Connection: {'keep-alive' if stay else 'close'}\r\n\r\n".encode()
        + text
    )
    await writer.drain()
    return stay


def _text(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()
