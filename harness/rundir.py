"""Where a run's files live, and the facts about the host that never enter a simulated journal."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import SpecError
from harness.spec import Spec

VERSIONED = ("jax", "jaxlib", "flax", "optax", "numpy", "grpcio", "docker", "toxiproxy-python")


@dataclass(frozen=True)
class RunDir:
    """A run directory. See the design's contract for what each file is."""

    path: Path

    @property
    def journal(self) -> Path:
        """The append-only event file."""
        return self.path / "journal.jsonl"

    @property
    def report_html(self) -> Path:
        """The report that people read."""
        return self.path / "report.html"

    @classmethod
    def create(cls, path: Path, spec: Spec, run: str, seed: int) -> RunDir:
        """Make the directory and write what is known before anything starts.

        Raises :class:`SpecError` when it cannot be written or already holds a run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if (path / "journal.jsonl").exists():
                raise SpecError("--out", [f"{path} already holds a run; name another folder"])
            (path / "units").mkdir(exist_ok=True)
            (path / "spec.toml").write_text(spec.text, encoding="utf-8")
            _write_json(path / "spec.resolved.json", {**spec.resolved(), "seed": seed})
            _write_json(path / "host.json", {"run": run, **host_facts()})
        except OSError as error:
            raise SpecError(
                "--out", [f"cannot write to {path}: {error.strerror or error}"]
            ) from error
        return cls(path)


def new_run_id(now: datetime.datetime | None = None) -> str:
    """A run id that sorts by time and is safe in file names, labels and container names."""
    stamp = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{os.urandom(3).hex()}"


def host_facts() -> dict[str, Any]:
    """What machine and versions a run was made with."""
    facts: dict[str, Any] = {
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "commit": commit(),
        "versions": {name: _version(name) for name in VERSIONED},
    }
    facts["fingerprint"] = fingerprint(facts)
    return facts


def fingerprint(facts: dict[str, Any]) -> str:
    """A key for "the same kind of host": baselines of another kind are not comparable."""
    parts = [str(facts[k]) for k in ("machine", "cpus", "python")]
    # Memory as reported by the kernel differs by a few pages from boot to boot.
    parts.append(str(round(facts["memory_bytes"] / 2**30)))
    return hashlib.blake2b("|".join(parts).encode(), digest_size=6).hexdigest()


def commit() -> str:
    """The commit of the source tree this package runs from, with ``+`` when it was changed."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""  # installed from a wheel, or no git on this machine


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *arguments], capture_output=True, text=True, timeout=5, check=True
    )
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
