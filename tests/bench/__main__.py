"""``python -m tests.bench [MODULE ...]``: run the benches and print each figure beside its bar.

Exit status 0 when every bar is met, 1 when one is missed, 4 when a bench itself broke.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

import tests.bench
from tests.bench import Figure


def names() -> list[str]:
    """Every module beside this one."""
    return sorted(m.name for m in pkgutil.iter_modules(tests.bench.__path__) if m.name[0] != "_")


def line(figure: Figure, width: int) -> str:
    """One row of the table."""
    mark = "ok  " if figure.ok else "MISS"
    value = f"{figure.value:,.3g}" if abs(figure.value) < 1000 else f"{figure.value:,.0f}"
    bar = f"bar {figure.bar}" if figure.bar else "no bar"
    return f"  {mark} {figure.name:<{width}}  {value:>12} {figure.unit:<12} {bar}"


def run(chosen: Sequence[str]) -> int:
    """Run the modules called ``chosen`` one after the other; the exit status."""
    missed = broken = 0
    for name in chosen:
        began = time.perf_counter()
        try:
            figures: list[Figure] = import_module(f"tests.bench.{name}").measure()
        except Exception:
            # One bench that breaks must not hide what the others have to say.
            broken += 1
            print(f"{name}: broke\n{traceback.format_exc()}", flush=True)
            continue
        width = max((len(f.name) for f in figures), default=0)
        print(f"{name} ({time.perf_counter() - began:.1f} s)")
        print("\n".join(line(f, width) for f in figures), flush=True)
        missed += sum(not f.ok for f in figures)
    print(f"{missed} missed, {broken} broke")
    return 4 if broken else 1 if missed else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("module", nargs="*", help=f"one of {', '.join(names())}; default all")
    asked = parser.parse_args().module
    unknown = sorted(set(asked) - set(names()))
    if unknown:
        parser.error(f"no bench {', '.join(unknown)} (there are: {', '.join(names())})")
    return run(asked or names())


if __name__ == "__main__":
    sys.exit(main())
