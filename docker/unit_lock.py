"""Cut the unit image's part out of requirements.lock: python docker/unit_lock.py LOCK NAMES.

Reads a hash-pinned lock whose entries say after ``# via`` who needs them, and a file with one
package name a line. Prints the entries of those packages and of everything they need, hashes
included, so that the image installs exactly what the lock pins. Uses the standard library only:
it also runs while the image is built. Exits 2 when a name is not in the lock.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ENTRY = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==")


def entries(lock: str) -> dict[str, list[str]]:
    """Package name to the lines of its entry (pin, hashes and ``via`` comments)."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in lock.splitlines():
        match = ENTRY.match(line)
        if match:
            lines = found[match[1].lower()] = []
        if line.strip() and (match or line.startswith(" ")):
            lines.append(line)
    return found


def needed_by(lines: list[str]) -> set[str]:
    """Names after ``# via`` in one entry: the packages that need it."""
    comments = [line.strip() for line in lines if line.strip().startswith("#")]
    words = [re.sub(r"^#\s*(via\b)?", "", comment).strip() for comment in comments]
    return {word.split()[0].lower() for word in words if word}


def closure(found: dict[str, list[str]], roots: set[str]) -> set[str]:
    """``roots`` and everything that they need, directly or not."""
    users = {name: needed_by(lines) for name, lines in found.items()}
    kept = set(roots)
    while True:
        more = {name for name, by in users.items() if by & kept} - kept
        if not more:
            return kept
        kept |= more


def main(lock: Path, names: Path) -> int:
    """Print the entries; returns the exit status."""
    found = entries(lock.read_text())
    wanted = (line.partition("#")[0].strip().lower() for line in names.read_text().splitlines())
    roots = {name for name in wanted if name}
    missing = sorted(roots - found.keys())
    if missing:
        sys.stderr.write(f"{names}: not in {lock}: {', '.join(missing)}\n")
        return 2
    for name in sorted(closure(found, roots)):
        sys.stdout.write("\n".join(found[name]) + "\n")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
