"""The one place that knows toxiproxy-python, and what its server does that one must know.

* The client keeps the server's address in class attributes. Each :class:`Links` works on a
  private copy of the package, so two servers in one process do not get mixed up, and a user's
  own toxiproxy-python is left alone.
* The client sets no timeouts, honours proxy variables of the environment, and takes its time: a
  fault is late by as much. Its calls go through :meth:`Links._request` here, each on a connection
  of its own with a deadline; what goes wrong is a :class:`~harness.errors.ControlError` that says
  what to do.
* The server accepts impossible values; they are refused here before they get there.
* Removing a toxic can hang when the link below it died with data pending, and removing
  ``timeout`` ends connections anyway: healing deletes the proxy and creates it anew, except for
  latency and bandwidth above 0, which live connections survive.
"""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from faults.base import LinkState
from harness.errors import ControlError
from harness.runtimes.toxics import Toxics, ends_links, toxics_for

CALL_S = 3.0
"""Longest silence of the server in one call."""
PROBE_S = 2.0
"""How long a healed link may take to accept a connection."""

_copies = itertools.count()


@dataclass
class _Link:
    """What is known of a proxy on the server."""

    listen: str
    upstream: str
    toxics: Toxics
    enabled: bool = True


@dataclass(frozen=True)
class _Answer:
    """As much of ``requests.Response`` as the library looks at."""

    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        return json.loads(self.content)


class Links:
    """The proxy links on one server (Toxiproxy or embedded).

    ``call_s`` bounds each call to the server. Methods raise :class:`ControlError`; after one
    the state of the link it was about is unknown, and the next ``set_state`` creates it anew.
    Calls from several threads about one link are carried out one after the other, those about
    different links side by side. ``probe`` is off where the links listen on a network that this
    process cannot reach.
    """

    def __init__(self, host: str, port: int, call_s: float = CALL_S, probe: bool = True) -> None:
        self.address = f"{host}:{port}"
        self._server = (host, port)
        self._probes = probe
        self._known: dict[str, _Link] = {}
        self._broken: set[str] = set()
        self._locks: dict[str, threading.RLock] = {}
        """One for each link; :meth:`restore` takes them all."""
        self._call_s = call_s
        self._module = _private_copy()
        self._client = self._module.Toxiproxy()
        self._client.update_api_consumer(host, port)
        consumer = self._module.api.APIConsumer
        for method in ("get", "post", "delete"):
            setattr(consumer, method, partial(self._request, method))

    # --- what runtimes call ---

    def version(self) -> str:
        """What the server says it is."""
        said = self._call("ask for the version", lambda: self._get("/version").json()["version"])
        return str(said)

    def names(self) -> tuple[str, ...]:
        """Every proxy on the server, ours or not."""
        return tuple(self._call("list the links", self._client.proxies))

    def toxics(self) -> tuple[str, ...]:
        """Every toxic on the server as ``link/toxic``."""
        found = self._call("list the toxics", lambda: self._get("/proxies").json())
        return tuple(f"{name}/{t['name']}" for name, p in found.items() for t in p["toxics"])

    def create(self, name: str, listen: str, upstream: str) -> str:
        """Create a healthy link; returns the address on which it listens."""
        with self._lock_of(name):
            self._make(name, listen, upstream, enabled=True)
            return self._known[name].listen

    def delete(self, name: str) -> None:
        """Remove a link and end its connections; one that is not there is no mistake."""
        with self._lock_of(name):
            self._destroy(name)
            self._known.pop(name, None)
            self._broken.discard(name)

    def set_state(self, name: str, state: LinkState) -> str:
        """Bring the link into ``state``; returns a note. Safe to call twice.

        A link that becomes healthy is probed: it must accept a connection.
        Raises ``ValueError`` for an impossible state.
        """
        wanted = toxics_for(state)
        with self._lock_of(name):
            link = self._known.get(name)
            if link is None:
                raise ControlError(f"there is no link {name} on the proxy at {self.address}")
            recreate = name in self._broken or any(
                ends_links(value) and wanted.get(toxic) != value
                for toxic, value in link.toxics.items()
            )
            self._broken.add(name)  # until every step has succeeded
            note = self._bring(name, link, wanted, not state.refused, recreate)
            self._broken.discard(name)
        if state.healthy and self._probes:
            self._probe(name, link.listen)
        return note

    def restore(self) -> int:
        """Make every known link again, in the state it was in, on a server that was started anew.

        Returns the number of links.
        """
        with self._whole():
            for name, link in list(self._known.items()):
                # A change that was tried again may have been quicker.
                self._destroy(name)
                self._make(name, link.listen, link.upstream, enabled=False)
                made = self._known[name]
                for toxic, value in link.toxics.items():
                    self._put_toxic(name, made, toxic, value)
                self._enable(name, made, link.enabled)
            return len(self._known)

    # --- steps ---

    def _lock_of(self, name: str) -> threading.RLock:
        return self._locks.setdefault(name, threading.RLock())

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Nobody else changes any link meanwhile."""
        with ExitStack() as stack:
            for name in sorted(self._known):
                stack.enter_context(self._lock_of(name))
            yield

    def _bring(self, name: str, link: _Link, wanted: Toxics, enabled: bool, recreate: bool) -> str:
        if not enabled and not recreate:
            # Nobody gets through to meet a toxic; closing comes first.
            self._enable(name, link, False)
        if recreate:
            self._destroy(name)
            self._make(name, link.listen, link.upstream, enabled=enabled and not wanted)
            link = self._known[name]
        for toxic in [t for t in link.toxics if t not in wanted]:
            self._drop_toxic(name, link, toxic)
        for toxic, value in wanted.items():
            if link.toxics.get(toxic) != value:
                self._put_toxic(name, link, toxic, value)
        if enabled != link.enabled:
            self._enable(name, link, enabled)
        return "link created anew" if recreate else ""

    def _make(self, name: str, listen: str, upstream: str, enabled: bool) -> None:
        made = self._call(
            f"create link {name} on {listen}",
            # The library's own call asks for all links first.
            lambda: self._module.api.APIConsumer.post(
                "/proxies",
                json={"name": name, "listen": listen, "upstream": upstream, "enabled": enabled},
            ).json()["listen"],
        )
        self._known[name] = _Link(made, upstream, {}, enabled)

    def _destroy(self, name: str) -> None:
        try:
            self._call(
                f"delete link {name}",
                lambda: self._module.api.APIConsumer.delete(f"/proxies/{name}"),
            )
        except ControlError as error:
            if not isinstance(error.__cause__, self._module.exceptions.NotFound):
                raise

    def _enable(self, name: str, link: _Link, enabled: bool) -> None:
        if link.enabled != enabled:
            proxy = self._proxy(name, link)
            self._call(
                f"{'enable' if enabled else 'disable'} link {name}",
                proxy.enable if enabled else proxy.disable,
            )
            link.enabled = enabled

    def _put_toxic(
        self, name: str, link: _Link, toxic: str, value: tuple[str, str, dict[str, int]]
    ) -> None:
        kind, stream, attributes = value
        if toxic in link.toxics:
            body = {"attributes": attributes}
            path = f"/proxies/{name}/toxics/{toxic}"
            self._call(
                f"change {toxic} on link {name}",
                lambda: self._module.api.APIConsumer.post(path, json=body),
            )
        else:
            proxy = self._proxy(name, link)
            self._call(
                f"put {toxic} on link {name}",
                lambda: proxy.add_toxic(
                    name=toxic, type=kind, stream=stream, toxicity=1.0, attributes=attributes
                ),
            )
        link.toxics[toxic] = value

    def _drop_toxic(self, name: str, link: _Link, toxic: str) -> None:
        proxy = self._proxy(name, link)
        self._call(f"take {toxic} off link {name}", lambda: proxy.destroy_toxic(toxic))
        del link.toxics[toxic]

    def _proxy(self, name: str, link: _Link) -> Any:
        return self._module.Proxy(
            name=name, upstream=link.upstream, enabled=link.enabled, listen=link.listen
        )

    def _get(self, path: str) -> Any:
        return self._module.api.APIConsumer.get(path)

    def _request(self, method: str, url: str, json: Any = None) -> _Answer:
        """What the library's own three calls do, with a deadline, and no status overlooked."""
        connection = http.client.HTTPConnection(*self._server, timeout=self._call_s)
        try:
            connection.request(method.upper(), url, *_body(json))
            response = connection.getresponse()
            answer = _Answer(response.status, response.read())
        finally:
            connection.close()
        self._module.api.validate_response(answer)
        if answer.status_code >= 400:
            raise ControlError(f"the server answered {answer.status_code}: {answer.text}")
        return answer

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ControlError as error:
            raise ControlError(f"cannot {what}: {error}") from error
        except TimeoutError as error:
            raise ControlError(
                f"cannot {what}: the proxy server at {self.address} did not answer within "
                f"{self._call_s:g} s; a dead link can keep its lock (end the server: a new run "
                "starts a new one)"
            ) from error
        except (ValueError, KeyError, TypeError) as error:  # not JSON, or not what was asked for
            raise ControlError(
                f"cannot {what}: {self.address} does not answer like a proxy server "
                f"({type(error).__name__}: {error})"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(
                f"cannot {what}: no proxy server at {self.address} ({_brief(error)}); its log "
                "says why it ended"
            ) from error
        except Exception as error:  # the library's own three have no root of their own
            raise ControlError(f"cannot {what}: {type(error).__name__} {error}") from error

    def _probe(self, name: str, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        deadline = time.monotonic() + PROBE_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=PROBE_S).close()
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise ControlError(
                        f"link {name} was healed but {listen} accepts no connection: {error}"
                    ) from error
            time.sleep(0.01)


def _body(value: Any) -> tuple[bytes | None, dict[str, str]]:
    """A request's body and headers."""
    close = {"Connection": "close"}
    if value is None:
        return None, close
    return json.dumps(value).encode(), {**close, "Content-Type": "application/json"}


def _private_copy() -> ModuleType:
    """toxiproxy-python loaded once more, under a name of its own."""
    original = importlib.util.find_spec("toxiproxy")
    assert original is not None
    assert original.origin is not None
    name = f"_toxiproxy_{next(_copies)}"
    spec = importlib.util.spec_from_file_location(
        name, original.origin, submodule_search_locations=[str(Path(original.origin).parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its own relative imports look here
    spec.loader.exec_module(module)
    return module


def _brief(error: Exception) -> str:
    return str(error).rpartition("] ")[2].strip("')") or type(error).__name__
