"""A TCP proxy in a process of its own that speaks Toxiproxy's HTTP API.

``python -m harness.runtimes.embedded_proxy --host 127.0.0.1 --port 8474`` takes the place of the
Toxiproxy server where none is installed. One contract suite runs against both. Where it differs
on purpose: impossible values (toxicity 5, latency -5) are refused with 400, byte counters move
while a connection is open, removing a toxic never hangs, and ``reset_peer`` resets both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from harness.runtimes.embedded_http import Answer, ApiError, serve
from harness.runtimes.embedded_links import STREAMS, Proxy, split_address
from harness.runtimes.embedded_toxics import KINDS, Toxic

VERSION = "embedded"


class Server:
    """The proxies, and the API over them."""

    def __init__(self, seed: int = 0) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._rng = random.Random(seed)
        self._lock = asyncio.Lock()  # one change at a time; starting to listen takes a while

    async def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Status and JSON value (None for an empty body) for one request."""
        parts = [p for p in path.partition("?")[0].split("/") if p]
        handler = self._route("POST" if method == "PATCH" else method, parts)
        async with self._lock:
            return await handler(_json(body) if body else {})

    def _route(self, method: str, parts: list[str]) -> Callable[[Any], Coroutine[Any, Any, Answer]]:
        key = (method, len(parts), parts[0] if parts else "", parts[2] if len(parts) > 2 else "")
        table: dict[Any, Callable[[Any], Coroutine[Any, Any, Answer]]] = {
            ("GET", 1, "version", ""): self._version,
            ("GET", 1, "metrics", ""): self._metrics,
            ("POST", 1, "reset", ""): self._reset,
            ("POST", 1, "populate", ""): self._populate,
            ("GET", 1, "proxies", ""): self._list,
            ("POST", 1, "proxies", ""): self._create,
            ("GET", 2, "proxies", ""): lambda _: self._show(parts[1]),
            ("POST", 2, "proxies", ""): lambda body: self._update(parts[1], body),
            ("DELETE", 2, "proxies", ""): lambda _: self._delete(parts[1]),
            ("GET", 3, "proxies", "toxics"): lambda _: self._toxics(parts[1]),
            ("POST", 3, "proxies", "toxics"): lambda body: self._add_toxic(parts[1], body),
            ("GET", 4, "proxies", "toxics"): lambda _: self._show_toxic(parts[1], parts[3]),
            ("POST", 4, "proxies", "toxics"): lambda body: self._change(parts[1], parts[3], body),
            ("DELETE", 4, "proxies", "toxics"): lambda _: self._drop_toxic(parts[1], parts[3]),
        }
        if key not in table:
            raise ApiError(404, f"no such call: {method} /{'/'.join(parts)}")
        return table[key]

    # --- proxies ---

    async def _version(self, _: Any) -> Answer:
        return 200, {"version": VERSION}

    async def _list(self, _: Any) -> Answer:
        return 200, {name: _proxy_json(proxy) for name, proxy in self.proxies.items()}

    async def _create(self, body: Any) -> Answer:
        name, listen, upstream, enabled = _proxy_fields(body)
        if name in self.proxies:
            raise ApiError(409, "proxy already exists")
        proxy = Proxy(name, listen, upstream, self._rng)
        if enabled:
            await _start(proxy)
        self.proxies[name] = proxy
        return 201, _proxy_json(proxy)

    async def _populate(self, body: Any) -> Answer:
        if not isinstance(body, list):
            raise ApiError(400, "bad request body: a list of proxies is wanted")
        wanted = [_proxy_fields(entry) for entry in body]
        for name, listen, upstream, enabled in wanted:
            old = self.proxies.get(name)
            if old is not None and (old.listen, old.upstream) == (listen, upstream):
                await _enable(old, enabled)
                continue
            if old is not None:
                old.stop()
            self.proxies[name] = Proxy(name, listen, upstream, self._rng)
            await _enable(self.proxies[name], enabled)
        return 201, {"proxies": [_proxy_json(self.proxies[name]) for name, *_ in wanted]}

    async def _show(self, name: str) -> Answer:
        return 200, _proxy_json(self._proxy(name))

    async def _update(self, name: str, body: Any) -> Answer:
        proxy = self._proxy(name)
        if not isinstance(body, dict):
            raise ApiError(400, "bad request body")
        _, listen, upstream, enabled = _proxy_fields({**_proxy_json(proxy), **body, "name": name})
        if (listen, upstream) != (proxy.listen, proxy.upstream):
            proxy.stop()
            proxy.listen, proxy.upstream = listen, upstream
        await _enable(proxy, enabled)
        return 200, _proxy_json(proxy)

    async def _delete(self, name: str) -> Answer:
        self._proxy(name).stop()
        del self.proxies[name]
        return 204, None

    async def _reset(self, _: Any) -> Answer:
        for proxy in self.proxies.values():
            for toxic in tuple(proxy.toxics):
                proxy.remove_toxic(toxic)
            await _enable(proxy, True)
        return 204, None

    async def _metrics(self, _: Any) -> Answer:
        lines = []
        for index, what in enumerate(("received", "sent")):
            lines.append(f"# TYPE toxiproxy_proxy_{what}_bytes_total counter")
            for proxy in self.proxies.values():
                for stream in STREAMS:
                    labels = f'direction="{stream}",listener="{proxy.listen}",'
                    labels += f'proxy="{proxy.name}",upstream="{proxy.upstream}"'
                    value = proxy.bytes_of(stream)[index]
                    lines.append(f"toxiproxy_proxy_{what}_bytes_total{{{labels}}} {value}")
        return 200, "\n".join(lines) + "\n"

    # --- toxics ---

    async def _toxics(self, name: str) -> Answer:
        return 200, [toxic.as_json() for toxic in self._proxy(name).toxics]

    async def _add_toxic(self, name: str, body: Any) -> Answer:
        proxy = self._proxy(name)
        toxic = _new_toxic(body)
        if any(t.name == toxic.name for t in proxy.toxics):
            raise ApiError(409, "toxic already exists")
        proxy.add_toxic(toxic)
        return 200, toxic.as_json()

    async def _show_toxic(self, name: str, toxic: str) -> Answer:
        return 200, self._toxic(name, toxic).as_json()

    async def _change(self, name: str, toxic_name: str, body: Any) -> Answer:
        toxic = self._toxic(name, toxic_name)
        given = body.get("attributes", {}) if isinstance(body, dict) else None
        if not isinstance(given, dict):
            raise ApiError(400, "bad request body")
        attributes = _attributes(toxic.type, {**toxic.attributes, **given})
        toxic.toxicity = _toxicity(body.get("toxicity", toxic.toxicity))
        toxic.attributes.update(attributes)
        self._proxy(name).change_toxic(toxic)
        return 200, toxic.as_json()

    async def _drop_toxic(self, name: str, toxic: str) -> Answer:
        self._proxy(name).remove_toxic(self._toxic(name, toxic))
        return 204, None

    def _proxy(self, name: str) -> Proxy:
        if name not in self.proxies:
            raise ApiError(404, "proxy not found")
        return self.proxies[name]

    def _toxic(self, name: str, toxic_name: str) -> Toxic:
        for toxic in self._proxy(name).toxics:
            if toxic.name == toxic_name:
                return toxic
        raise ApiError(404, "toxic not found")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError(400, f"bad request body: {error}") from error


def _proxy_json(proxy: Proxy) -> dict[str, Any]:
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.enabled,
        "toxics": [toxic.as_json() for toxic in proxy.toxics],
    }


def _proxy_fields(body: Any) -> tuple[str, str, str, bool]:
    if not isinstance(body, dict):
        raise ApiError(400, "bad request body")
    for field in ("name", "upstream"):
        if not isinstance(body.get(field), str) or not body[field]:
            raise ApiError(400, f"missing required field: {field}")
    listen, enabled = body.get("listen") or "127.0.0.1:0", body.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ApiError(400, "bad request body: enabled is true or false")
    try:
        split_address(listen)
        split_address(body["upstream"])
    except (ValueError, AttributeError) as error:
        raise ApiError(400, f"bad request body: {error}") from error
    return body["name"], listen, body["upstream"], enabled


async def _start(proxy: Proxy) -> None:
    try:
        await proxy.start()
    except OSError as error:
        raise ApiError(500, f"listen tcp {proxy.listen}: {error.strerror}") from error


async def _enable(proxy: Proxy, enabled: bool) -> None:
    if enabled and not proxy.enabled:
        await _start(proxy)
    elif not enabled:
        proxy.stop()


def _new_toxic(body: Any) -> Toxic:
    if not isinstance(body, dict):
        raise ApiError(400, "bad request body")
    kind, stream = body.get("type"), body.get("stream") or "downstream"
    if not isinstance(kind, str) or kind not in KINDS:
        raise ApiError(400, "invalid toxic type")
    if stream not in STREAMS:
        raise ApiError(400, "stream was invalid, can be either upstream or downstream")
    attributes = _attributes(kind, body.get("attributes") or {})
    name = str(body.get("name") or f"{kind}_{stream}")
    return Toxic(name, kind, stream, _toxicity(body.get("toxicity", 1.0)), attributes)


def _toxicity(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ApiError(400, f"toxicity is {value!r}; it is a share between 0 and 1")
    return float(value)


def _attributes(kind: str, given: Any) -> dict[str, int]:
    known = KINDS[kind].defaults
    if not isinstance(given, dict):
        raise ApiError(400, "bad request body: attributes is an object")
    for name, value in given.items():
        if name not in known:
            raise ApiError(400, f"{kind} has no attribute {name!r}; it has {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ApiError(400, f"{kind}.{name} is {value!r}; it is a whole number from 0 on")
    return {**known, **given}


async def run(host: str, port: int, seed: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    api = Server(seed)
    listener = await serve(api.answer, host, port)
    bound = listener.sockets[0].getsockname()[1]
    sys.stderr.write(f"embedded proxy: control on {host}:{bound}\n")
    sys.stderr.flush()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    for proxy in api.proxies.values():
        proxy.stop()
    listener.close()


def main(arguments: list[str] | None = None) -> int:
    """Command line of the proxy."""
    parser = argparse.ArgumentParser(prog="python -m harness.runtimes.embedded_proxy")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8474)
    parser.add_argument("--seed", type=int, default=0, help="of jitter and toxicity")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(run(options.host, options.port, options.seed))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
