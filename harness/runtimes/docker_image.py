"""Which sources a unit image was built from: a digest over the packages that units import.

``python harness/runtimes/docker_image.py`` prints the digest of this checkout;
``docker/prepare.sh`` stores it in the image's label ``diloco-chaos.sources``. The docker runtime
compares it with its own, so that containers never run other code than the harness beside them.
Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

PACKAGES = ("harness", "faults", "targets")
"""The import packages that docker/Dockerfile.unit copies."""

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages: a checkout, or site-packages."""


def sources_digest(root: Path = ROOT) -> str:
    """16 hex digits over the name and content of every ``.py`` file of :data:`PACKAGES`."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.stdout.write(sources_digest() + "\n")
