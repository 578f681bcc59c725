"""One temporary folder for a search and its workers, and its removal.

The process that makes the folder holds a lock on it for as long as it lives; the kernel drops the
lock of a process that dies. So every folder without a lock is one that was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.fuzz.ending import deaf

PREFIX = "diloco-chaos-fuzz-"
_MEMORY = Path("/dev/shm")
_current: list[Path] = []


def places() -> tuple[Path, ...]:
    """Where folders are made, the best one first: in memory, if there is such a place."""
    usual = Path(tempfile.gettempdir())
    return (_MEMORY, usual) if _MEMORY.is_dir() else (usual,)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; inside another :func:`scratch` or after :func:`adopt` that
    one's, which stays. Raises ``OSError`` when none can be made."""
    if _current:
        yield _current[-1]
        return
    made: list[tuple[Path, int]] = []
    try:
        with deaf():
            made.append(_made())
            _current.append(made[0][0])
        yield made[0][0]
    finally:
        with deaf():
            for folder, descriptor in made:
                _current.remove(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def adopt(folder: Path) -> None:
    """Use ``folder``, which another process made and removes."""
    _current.append(folder)


def _made() -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=places()[0]))
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody who cleans up may have come between the two: then it is no longer there.
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return folder, descriptor
        os.close(descriptor)


def abandoned(roots: Sequence[Path] | None = None) -> Iterator[Path]:
    """This user's folders whose owner is gone. Each is held while the caller has it, so nobody
    makes it his own before it is removed."""
    for root in places() if roots is None else roots:
        for folder in sorted(root.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError), _held(folder):  # in use, or removed meanwhile
                yield folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Raises ``OSError`` when the folder is another user's, or somebody holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is another user's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
