"""The architecture is a test too: who may import whom, and what protocol code may not name."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "faults", "targets", "reports")

ALLOWED: dict[str, tuple[str, ...]] = {
    # package: what of ours it may import besides itself
    "faults": (),
    "targets": (
        "harness.errors",
        "harness.events",
        "harness.clock",
        "harness.seeds",
        "faults.base",
    ),
    "reports": ("harness.errors", "harness.events", "harness.journal"),
    "harness": ("faults", "targets"),
}
COMPOSITION_ROOTS = ("harness.commands", "harness.plugin", "harness.testing", "harness.fuzz")
"""Only these bring harness and reports together."""

SANS_IO = (
    "targets/node.py",
    "targets/diloco/syncer.py",
    "targets/diloco/sessions.py",
    "targets/diloco/mending.py",
    "targets/diloco/committed.py",
    "targets/diloco/lastline.py",
    "targets/diloco/takeover.py",
    "targets/diloco/learner.py",
    "targets/diloco/grace.py",
    "targets/diloco/weighting.py",
    "targets/diloco/evaluation.py",
    "targets/diloco/fragments.py",
    "targets/diloco/messages.py",
    "targets/spmd/launcher.py",
    "targets/spmd/worker.py",
    "targets/spmd/progress.py",
    "targets/spmd/messages.py",
    "harness/plan.py",
)
NOT_IN_PROTOCOL = {
    "socket",
    "time",
    "threading",
    "asyncio",
    "jax",
    "grpc",
    "numpy",
    "os",
    "secrets",
}


def files(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).rglob("*.py") if not p.stem.endswith("_pb2"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, type-checking ones and those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)


def within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(allowed + ".")


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_flow_one_way(package: str) -> None:
    wrong = []
    for path in files(package):
        root = any(within(module_of(path), r) for r in COMPOSITION_ROOTS)
        allowed = (package, *ALLOWED[package], *(PACKAGES if root else ()))
        for line, module in imports(path):
            if module.split(".")[0] not in PACKAGES:
                continue
            # "from harness import seeds" also names "harness" itself, which holds nothing.
            if module in PACKAGES and package != "faults":
                continue
            if not any(within(module, a) or within(a, module) for a in allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


@pytest.mark.parametrize("name", SANS_IO)
def test_protocol_code_does_no_io(name: str) -> None:
    named = {module.split(".")[0] for _, module in imports(ROOT / name)}
    assert named & NOT_IN_PROTOCOL == set()
    assert "random" not in named or name == "harness/plan.py", "plan draws from named streams"


def test_top_level_packages_are_these_four() -> None:
    found = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert found - {"tests"} == set(PACKAGES)


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after ``statement`` in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import reports.write", {"jax", "grpc", "docker", "pydantic", "numpy"}),
        ("import harness.plugin", {"jax", "grpc", "docker", "pydantic", "numpy", "jinja2"}),
        ("import targets.diloco.syncer, targets.diloco.learner", {"jax", "grpc", "pydantic"}),
        ("import harness.__main__", {"jax", "grpc", "docker", "pydantic"}),
        ("import faults; [faults.load(k) for k in faults.FAULTS]", {"jax", "docker", "harness"}),
    ],
)
def test_light_parts_stay_light(statement: str, absent: set[str]) -> None:
    assert loaded_by(statement) & absent == set()


def test_every_dependency_is_used_and_every_import_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {d.split(">")[0].split("=")[0].replace("_", "-") for d in project["dependencies"]}
    names = {
        "grpcio": "grpc",
        "protobuf": "google",
        "toxiproxy-python": "toxiproxy",
        "annotated-types": "annotated_types",
    }
    used = {m.split(".")[0] for p in PACKAGES for f in files(p) for _, m in imports(f)}
    # The generated wire code, and the client that is loaded as a private copy of its own.
    used |= {"google", "toxiproxy"}
    assert {d for d in declared if names.get(d, d) not in used} == set()
    own = set(PACKAGES) | {"__future__"} | set(sys.stdlib_module_names)
    assert {u for u in used - own if u not in {names.get(d, d) for d in declared}} == set()


def test_no_path_of_a_machine_in_the_sources() -> None:
    bad = [
        f"{path.relative_to(ROOT)}"
        for package in (*PACKAGES, "docker")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".sh", ".toml", ".j2", ".yml") and "/home/" in path.read_text()
    ]
    assert bad == []
