"""Which links a unit's fault touches, from which side, and two faults that meet on one link."""

from __future__ import annotations

from faults.base import LinkState
from harness.events import UnitInfo
from harness.runtimes.linktable import LinkTable
from targets.base import UnitSpec


def unit(name: str, *links: str) -> UnitSpec:
    return UnitSpec(UnitInfo(name=name, role="learner"), links)


TABLE = (unit("syncer"), unit("a", "syncer"), unit("b", "syncer"))


def test_a_unit_that_dials_has_its_own_links() -> None:
    state = LinkState(silent_up=True)
    assert LinkTable(TABLE).ask("a", state) == {"a-to-syncer": state}


def test_a_unit_that_listens_has_everybodys_turned_round() -> None:
    asked = LinkTable(TABLE).ask("syncer", LinkState(silent_up=True, latency_ms=5))
    turned = LinkState(silent_down=True, latency_ms=5)
    assert asked == {"a-to-syncer": turned, "b-to-syncer": turned}


def test_faults_of_both_ends_meet_on_the_link_and_end_one_by_one() -> None:
    table = LinkTable(TABLE)
    table.ask("a", LinkState(latency_ms=10))
    assert table.ask("syncer", LinkState(latency_ms=5))["a-to-syncer"].latency_ms == 15
    assert table.ask("a", LinkState()) == {"a-to-syncer": LinkState(latency_ms=5)}
    assert table.disturbed("syncer")
    assert not table.disturbed("a")
    assert table.ask("syncer", LinkState())["b-to-syncer"].healthy


def test_a_unit_without_links() -> None:
    table = LinkTable((unit("alone"),))
    assert table.ask("alone", LinkState(refused=True)) == {}
    assert table.links == ()
