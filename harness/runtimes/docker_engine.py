"""The Docker engine behind deadlines: what is tried, how it fails, and what to do about it.

Every call to the engine goes through :meth:`Engine.asked`. An engine that is not there, does not
answer or refuses becomes a :class:`ControlError` with the action, the address and a remedy; the
docker package's and requests' own exceptions never leave this file. Deadlines are per answer:
``timeout_s`` without a byte from the engine ends the call.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import docker
import docker.errors
import requests
from docker.models.containers import Container
from docker.types.daemon import CancellableStream
from urllib3.exceptions import HTTPError

from harness.errors import ControlError, LaunchError
from harness.leftovers import RUN_LABEL

ROLE_LABEL = "diloco-chaos.role"
"""learner, syncer or proxy."""
UNIT_LABEL = "diloco-chaos.unit"
GROUP_LABEL = "diloco-chaos.group"
OWNER_LABEL = "diloco-chaos.owner-pid"
EXPIRES_LABEL = "diloco-chaos.expires-at"
"""Unix seconds after which a later ``diloco-chaos clean`` may remove the thing."""

TIMEOUT_S = 10.0
REACH_S = 4.0
"""How long an engine may take to say that it is there; one that is slower than that is of no use,
and whoever waits for it has not begun anything yet."""
_WORKERS = 16
_ANY_VERSION = "1.41"
"""Until the engine has said which it speaks."""
_HEADER = struct.Struct(">BxxxL")

CUT: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    AttributeError,
    HTTPException,
    HTTPError,
    requests.exceptions.RequestException,
)
"""What reading a stream raises when the engine, or our own closing it, cuts it: the same as its
end. Whoever follows opens it anew. (ValueError and AttributeError: a file closed under a read.)
"""

REMEDY = (
    "start the engine (docker/prepare.sh --start-engine, or your system's service), see that this "
    "user may use its socket, or choose --runtime process"
)


@dataclass(frozen=True)
class Frame:
    """A piece of a container's output. ``stamp`` is the engine's, fixed width, so it sorts."""

    stamp: str
    stderr: bool
    data: bytes


class Engine:
    """One connection to a Docker engine. ``url`` None means ``DOCKER_HOST`` or the default.

    Raises :class:`LaunchError` when no engine answers within :data:`REACH_S`, or within
    ``timeout_s`` where that is less.
    """

    def __init__(self, url: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.address = url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self.timeout_s = min(timeout_s, REACH_S)
        self._try_socket()
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="docker")
        # The version is asked for apart from making the client: a constructor that fails half way
        # would leave its sockets to the garbage collector.
        given: dict[str, Any] = {"timeout": self.timeout_s, "version": _ANY_VERSION}
        try:
            with self.asked("reach the engine"):
                self.client = (
                    docker.DockerClient(base_url=url, **given) if url else docker.from_env(**given)
                )
        except ControlError as error:
            self._pool.shutdown(wait=False)
            raise LaunchError(str(error)) from error
        try:
            with self.asked("reach the engine"):
                said = self.api.version(api_version=False)
        except ControlError as error:
            self.close()
            raise LaunchError(str(error)) from error
        self.timeout_s = self.api.timeout = timeout_s
        self.version = str(said["Version"])
        self.api._version = str(said["ApiVersion"])

    def _try_socket(self) -> None:
        """Connect once by ourselves: the docker package leaks the socket of a failed attempt."""
        if not self.local:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(self.timeout_s)
            try:
                probe.connect(self.address.removeprefix("unix://"))
            except OSError as error:
                raise LaunchError(
                    f"cannot reach the Docker engine at {self.address} ({error.strerror}); {REMEDY}"
                ) from error

    @property
    def api(self) -> Any:
        """The low-level client (``docker.api.client.APIClient``): one HTTP request per method.

        Untyped, because the published stubs of it are wrong where it matters.
        """
        return self.client.api

    @property
    def local(self) -> bool:
        """Whether the engine's processes may be this host's (they are checked one by one)."""
        return self.address.startswith("unix://")

    @contextmanager
    def asked(self, action: str) -> Iterator[None]:
        """Turn every failure of the calls inside into a :class:`ControlError` about ``action``."""
        at = f"the Docker engine at {self.address}"
        try:
            yield
        except (requests.exceptions.Timeout, TimeoutError) as error:
            raise ControlError(
                f"cannot {action}: {at} did not answer within {self.timeout_s:g} s; "
                "look at its log, restart it if it hangs"
            ) from error
        except docker.errors.APIError as error:
            why = error.explanation or str(error)
            raise ControlError(f"cannot {action}: {at} says: {why}") from error
        except (requests.exceptions.RequestException, docker.errors.DockerException) as error:
            if "timed out" in str(error):
                raise ControlError(
                    f"cannot {action}: {at} did not answer within {self.timeout_s:g} s; "
                    "look at its log, restart it if it hangs"
                ) from error
            why = _root(error)
            raise ControlError(f"cannot {action}: no answer from {at} ({why}); {REMEDY}") from error

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What the engine knows of a container; None when there is none of that name or id."""
        with self.asked(f"inspect container {container}"):
            try:
                return dict(self.api.inspect_container(container))
            except docker.errors.NotFound:
                return None

    def containers(self, labels: Mapping[str, str], *, running: bool = False) -> list[Container]:
        """Every container that carries all of ``labels``."""
        wanted: dict[str, Any] = {"label": [f"{k}={v}" for k, v in labels.items()]}
        with self.asked("list containers"):
            return self.client.containers.list(all=not running, filters=wanted, ignore_removed=True)

    def each(self, tasks: Iterable[Callable[[], Any]]) -> list[Exception]:
        """Carry out all ``tasks`` side by side; returns what they raised, in their order."""
        futures = [self._pool.submit(task) for task in tasks]
        raised = (future.exception() for future in futures)
        failures = []
        for error in raised:
            if isinstance(error, Exception):
                failures.append(error)
            elif error is not None:
                raise error
        return failures

    def soon(self, task: Callable[[], Any]) -> None:
        """Carry out ``task`` on another thread; it deals with its own failures."""
        self._pool.submit(task)

    def exec(self, container: str, command: list[str]) -> tuple[int, str]:
        """Run ``command`` inside; (exit status, its output)."""
        with self.asked(f"run {command[0]} in container {container}"):
            made = self.api.exec_create(container, command)
            output = self.api.exec_start(made["Id"])
            status = self.api.exec_inspect(made["Id"])["ExitCode"]
        text = output.decode(errors="replace") if isinstance(output, bytes) else ""
        return (137 if status is None else int(status)), text.strip()

    def events(self, filters: Mapping[str, Any], since_ns: int) -> CancellableStream[Any]:
        """Engine events from ``since_ns`` (Unix) on; closing it from another thread ends it."""
        since = f"{since_ns // 10**9}.{since_ns % 10**9:09d}"
        with self.asked("watch the engine's events"):
            stream: CancellableStream[Any] = self.api.events(
                since=since, filters=dict(filters), decode=True
            )
            return stream

    def output(self, container: str, since: str) -> OutputStream:
        """Follow a container's output from engine time ``since`` (``seconds.nanoseconds``).

        The stream ends when the container stops, after everything it printed was read.
        """
        url = f"{self.api.base_url}/v{self.api.api_version}/containers/{container}/logs"
        params = {"follow": 1, "stdout": 1, "stderr": 1, "timestamps": 1, "since": since}
        with self.asked(f"follow the output of container {container}"):
            # No time limit on a read: a unit may be silent for as long as it likes.
            response = self.api.get(url, params=params, stream=True, timeout=(self.timeout_s, None))
            if response.status_code != 200:
                why = response.content.decode(errors="replace")[:200]
                raise docker.errors.APIError(why, response=response, explanation=why)
        return OutputStream(response)

    def close(self) -> None:
        """Let go of the connection and the threads. Safe to call twice."""
        self._pool.shutdown(wait=True)
        with suppress(Exception):  # closing sockets of an engine that is gone
            self.client.close()


class OutputStream:
    """Iterates over :class:`Frame`; :meth:`close` from another thread ends the iteration."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self._closer = CancellableStream(iter(()), response)

    def __iter__(self) -> Iterator[Frame]:
        raw = self._response.raw
        with suppress(*CUT):
            while len(header := raw.read(_HEADER.size)) == _HEADER.size:
                kind, length = _HEADER.unpack(header)
                stamp, _, data = raw.read(length).partition(b" ")
                yield Frame(stamp.decode("ascii", "replace"), kind == 2, data)

    def close(self) -> None:
        """End the iteration."""
        with suppress(Exception):  # it may be closed already, in one of several ways
            self._closer.close()


def labels(run: str, role: str, unit: str, expires_in_s: float) -> dict[str, str]:
    """The labels of one container, network or volume of a run."""
    return {
        RUN_LABEL: run,
        ROLE_LABEL: role,
        UNIT_LABEL: unit,
        OWNER_LABEL: str(os.getpid()),
        EXPIRES_LABEL: str(int(time.time() + expires_in_s)),
    }


def environment(attrs: Mapping[str, Any]) -> dict[str, str]:
    """A container's environment variables, from what :meth:`Engine.inspect` returned."""
    pairs = (entry.partition("=") for entry in attrs["Config"]["Env"] or ())
    return {name: value for name, _, value in pairs}


def _root(error: BaseException) -> str:
    """The first cause in a chain of wrapped errors, on one line."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error) or type(error).__name__
    with suppress(ValueError):
        text = str(json.loads(text).get("message", text))
    return " ".join(text.split())
