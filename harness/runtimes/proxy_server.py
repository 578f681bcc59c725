"""Which proxy server carries a run's links, and how to start it as a process of our own.

The real Toxiproxy server when there is one, else the embedded proxy with the same HTTP API.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from harness.errors import ControlError, LaunchError
from harness.runtimes.places import Ports
from harness.runtimes.toxiproxy import Links

VARIABLE = "DILOCO_CHAOS_TOXIPROXY"
NAMES = ("toxiproxy-server", "toxiproxy")
LOCAL = Path(".chaos/bin/toxiproxy-server")
"""Also looked for, relative to the current directory."""
START_S = 20.0
TRIES = 4
INSTALL = "go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"


def locate() -> str | None:
    """Path of a Toxiproxy server, or None.

    Raises :class:`LaunchError` when ``$DILOCO_CHAOS_TOXIPROXY`` names something else: who asks
    for a certain server must not silently get another.
    """
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise LaunchError(f"{VARIABLE} is {named}, which is no program that can be run")
        return found
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if os.access(LOCAL, os.X_OK):
        return str(LOCAL.resolve())
    return _installed_by_go()


def _installed_by_go() -> str | None:
    """``go install`` calls the server plainly "server"; only its own words tell what it is."""
    roots = [os.environ.get("GOBIN"), os.path.join(os.environ.get("GOPATH", ""), "bin")]
    for root in (*roots, str(Path.home() / "go" / "bin")):
        program = shutil.which("server", path=root) if root else None
        if program and _says_toxiproxy(program):
            return program
    return None


def _says_toxiproxy(program: str) -> bool:
    try:
        said = subprocess.run([program, "-version"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"toxiproxy" in said.stdout.lower()


def command(choice: str, port: int, seed: int) -> list[str]:
    """The command line of a server on ``port``; ``choice`` is auto, embedded or toxiproxy."""
    program = None if choice == "embedded" else locate()
    if program is not None:
        return [program, "-host", "127.0.0.1", "-port", str(port)]
    if choice == "toxiproxy":
        raise LaunchError(
            f"no Toxiproxy server on this machine; install it ({INSTALL}, or a package), name "
            f'it in {VARIABLE}, or use proxy = "embedded"'
        )
    module = "harness.runtimes.embedded_proxy"
    return [sys.executable, "-m", module, "--port", str(port), "--seed", str(seed)]


def describe(choice: str) -> str:
    """What :func:`command` would start: ``embedded``, or ``toxiproxy VERSION``.

    Raises :class:`LaunchError` like :func:`command`.
    """
    program = command(choice, 0, 0)[0]
    if program == sys.executable:
        return "embedded"
    try:
        said = subprocess.run([program, "-version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{program} does not say its version: {error}") from error
    return f"toxiproxy {said.stdout.decode(errors='replace').strip().rpartition(' ')[2]}"


class ProxyServer:
    """A running server and the adapter to it.

    ``started`` is called with the process before anything is asked of it, so that whoever
    answers for its removal knows it. Raises :class:`LaunchError` when no server comes up.
    """

    def __init__(
        self,
        ports: Ports,
        log: IO[bytes],
        choice: str = "auto",
        seed: int = 0,
        environment: dict[str, str] | None = None,
        started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
    ) -> None:
        self._log = log
        self._environment = environment
        self._started = started
        problems = []
        for _ in range(TRIES):
            self._port = ports.take()
            self._line = command(choice, self._port, seed)
            self.links = Links("127.0.0.1", self._port)
            try:
                self._start()
            except ControlError as error:
                problems.append(str(error))
            else:
                return
        raise LaunchError(
            f"the proxy server ({self._line[0]}) did not come up in {TRIES} tries: "
            f"{'; '.join(problems)}; see {getattr(log, 'name', 'its log')}"
        )

    @property
    def version(self) -> str:
        """``embedded``, or ``toxiproxy VERSION``."""
        said = self.links.version()
        return said if said == "embedded" else f"toxiproxy {said}"

    def open_link(self, ports: Ports, name: str, upstream: str) -> str:
        """Create a healthy link on a free port; returns the address to dial.

        Raises :class:`LaunchError` when several ports in a row cannot be had.
        """
        problems = []
        for _ in range(TRIES):
            try:
                return self.links.create(name, f"{ports.host}:{ports.take()}", upstream)
            except ControlError as error:
                problems.append(str(error))
        raise LaunchError(f"no port for link {name} in {TRIES} tries: {'; '.join(problems)}")

    def restart(self) -> int:
        """Start the server anew on its port after it ended, every link in the state it was in.

        Returns the number of links. Raises :class:`ControlError`.
        """
        self.stop()
        self._start()
        return self.links.restore()

    def stop(self, grace_s: float = 2.0) -> None:
        """End the server; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._line,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        try:
            self._started(self.process)
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        """Until our own process listens on the port and answers.

        An answer alone proves nothing: another run's server may have been faster to the port.
        """
        deadline = time.monotonic() + START_S
        while not _listens(self.process.pid, self._port):
            if self.process.poll() is not None:
                raise ControlError(f"port {self._port}: exit status {self.process.returncode}")
            if time.monotonic() >= deadline:
                raise ControlError(f"port {self._port}: not listening after {START_S:g} s")
            time.sleep(0.005)
        self.links.version()


def _listens(pid: int, port: int) -> bool:
    """Whether the process itself holds a socket that listens on the port (IPv4)."""
    inodes = set()
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir()) if inodes else []
    except OSError:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(descriptor) in inodes:
                return True
    return False
