"""The page in a real browser: offline, scripts off, both colour schemes, nothing overflows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.write import write_reports
from tests.reports.builder import write
from tests.reports.test_html import hostile
from tests.reports.test_write import CLUSTER

pytestmark = pytest.mark.browser

TIMEOUT_MS = 30_000

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("DILOCO_CHAOS_CHROMIUM") or shutil.which("chromium")
    if not program:
        pytest.skip("no chromium on PATH (set DILOCO_CHAOS_CHROMIUM to use another one)")
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=program, args=_FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write(tmp_path_factory.mktemp("page") / "run", CLUSTER.events())
    write_reports(run)
    return run / "report.html"


def opened(browser: Any, path: Path, **settings: Any) -> Any:
    context = browser.new_context(java_script_enabled=False, **settings)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.asked = []
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto(f"file://{path}")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_offline_without_scripts_and_fits(
    browser: Any, page_path: Path, scheme: str, width: int
) -> None:
    page = opened(browser, page_path, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert page.asked == [f"file://{page_path}"]
    box = page.locator("html").bounding_box()
    assert box["width"] <= width
    for section in page.locator("main > section").all():
        found = section.bounding_box()
        assert found["x"] >= 0
        assert found["x"] + found["width"] <= width
    page.context.close()


def test_patterns_are_painted(browser: Any, page_path: Path, tmp_path: Path) -> None:
    """The bar must differ from an empty one: a pattern that does not resolve paints nothing."""
    empty = tmp_path / "empty.html"
    empty.write_text(page_path.read_text().replace("url(#p-", "url(#nothing-"))
    shots = []
    for path in (page_path, empty):
        page = opened(browser, path, viewport={"width": 1280, "height": 900})
        shots.append(page.locator("svg.bar").screenshot())
        page.context.close()
    assert shots[0] != shots[1]


def test_keyboard_reaches_the_verdict_first(browser: Any, page_path: Path) -> None:
    page = opened(browser, page_path, viewport={"width": 1280, "height": 900})
    page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("href") == "#verdict"
    page.keyboard.press("Enter")
    assert page.url.endswith("#verdict")
    page.context.close()


def test_hostile_text_does_nothing(browser: Any, tmp_path: Path) -> None:
    run = write(tmp_path / "run", hostile())
    write_reports(run)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    dialogs: list[str] = []
    asked: list[str] = []
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    page.on("request", lambda r: asked.append(r.url))
    page.goto(f"file://{run / 'report.html'}")
    assert dialogs == []
    assert asked == [f"file://{run / 'report.html'}"]
    context.close()
