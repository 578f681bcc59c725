"""Where this package keeps things outside a run directory, and ports nobody else will take."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from pathlib import Path

from harness.errors import LaunchError

_FIRST_PORT = 12_000
_LAST_PORT = 64_999
_TRIES = 200


def cache_dir() -> Path:
    """The JAX compilation cache that runs share: ``$DILOCO_CHAOS_CACHE``, or under ~/.cache."""
    named = os.environ.get("DILOCO_CHAOS_CACHE")
    return Path(named) if named else _xdg("XDG_CACHE_HOME", ".cache") / "diloco-chaos" / "jax"


def state_dir() -> Path:
    """Where every run says where its manifest lies, so that any later command can clean up."""
    return _xdg("XDG_STATE_HOME", ".local/state") / "diloco-chaos" / "runs"


def _xdg(variable: str, default: str) -> Path:
    named = os.environ.get(variable)
    return Path(named) if named else Path.home() / default


class Ports:
    """Free TCP ports on loopback, outside the range from which the kernel draws by itself.

    A port is held by a lock on a file of its own for as long as this object lives, so two runs
    of one user never choose the same one, however close together they start; the kernel drops
    the locks of a process that dies. Other programs can still take a port between the choice
    and its use: whoever binds retries with the next one.
    """

    def __init__(self, host: str = "127.0.0.1", directory: Path | None = None) -> None:
        self.host = host
        self._directory = directory or state_dir().parent / "ports"
        self._locks: list[tuple[int, Path]] = []

    def take(self) -> int:
        """A free port; raises :class:`LaunchError` when none can be found."""
        low, high = _ephemeral_range()
        self._directory.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            # Not the run's seed: two runs of one seed must not meet at one port.
            port = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT + 1)
            if not low <= port <= high and self._lock(port):
                return port
        raise LaunchError(
            f"no free TCP port on {self.host} in {_TRIES} tries between {_FIRST_PORT} and "
            f"{_LAST_PORT}; see what listens there (ss -tln)"
        )

    def release(self) -> None:
        """Give every port back; safe to call twice."""
        while self._locks:
            descriptor, path = self._locks.pop()
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _lock(self, port: int) -> bool:
        path = self._directory / str(port)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Released between our open and our lock: then this is no longer the file of that name.
            ours = os.path.samestat(os.fstat(descriptor), os.stat(path))
        except OSError:
            ours = False
        if ours and _free(self.host, port):
            self._locks.append((descriptor, path))
            return True
        os.close(descriptor)
        return False


def sweep_ports(directory: Path | None = None) -> list[int]:
    """Remove the port files of processes that are gone; returns the ports. Never raises."""
    swept = []
    for path in (directory or state_dir().parent / "ports").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                swept.append(int(path.name))
            finally:
                os.close(descriptor)
    return sorted(swept)


def _free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 32_768, 60_999
    return int(low), int(high)
