"""A small file that is replaced often, whole each time, without waiting for the disk.

Writing a new file and renaming it over the old one is whole, too, but file systems that are careful
for people who forget to sync (ext4 by default) then write the data out first: milliseconds, on a
busy disk tens of them, by which whatever the file asks for is late. Here two files take turns: the
spare one is written in place and changes names with the other one, which nothing waits for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

ROOM = 512
"""Bytes of each of the two files: they keep their size, as a file that shrinks is written out."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_UNABLE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class SwapFile:
    """The file at ``path``, with its spare beside it. For one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_suffix(".spare")

    def write(self, text: bytes) -> None:
        """Let readers find ``text``, filled up with spaces to :data:`ROOM`. Whoever opened the file
        before this call and reads it during the next one may read a mixture.

        Raises ``OSError``, and ``ValueError`` for a text that is too long.
        """
        if len(text) > ROOM:
            raise ValueError(f"{len(text)} bytes do not fit into {ROOM}")
        handle = os.open(self._spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, text.ljust(ROOM), 0)
            now_ns = time.time_ns()  # finer than the kernel's own: every write is seen as one
            os.utime(handle, ns=(now_ns, now_ns))
        finally:
            os.close(handle)
        if not self._path.exists() or not _exchange(self._spare, self._path):
            self._spare.replace(self._path)


def _exchange(one: Path, other: Path) -> bool:
    """Let two files change names at once; False where the system cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "renameat2", None)
    if call is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if call(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
