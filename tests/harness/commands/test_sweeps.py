"""The paper's tables 4 and 5 on the real protocol, at a tenth of the length."""

from __future__ import annotations

import json

import pytest

from harness.__main__ import main
from harness.commands.simulate import arguments
from harness.commands.sweeps import SWEEPS, Speeds, scavenged, speeds, table_5_holds
from harness.scale.sweeps import TABLE_4, TABLE_5, Burst, Mixed, burst_table, mixed_table


def test_bounds_are_the_paper_s_times() -> None:
    assert [round(b.bound, 3) for b in TABLE_4] == [1.0, 0.9, 0.833, 0.75, 0.625]
    assert all(abs(b.bound - b.paper_decoupled) < 0.006 for b in TABLE_4)


def test_mixed_speeds_are_those_of_the_paper() -> None:
    params = mixed_table(TABLE_5[0])["target"]["params"]
    assert params["speeds"] == [1.0] * 4 + [0.82] * 4
    assert (params["quorum"], params["blocking"]) == (8, True)


def test_the_others_are_there_for_half_of_the_work() -> None:
    table = burst_table(Burst(4, 0.75, 1.02), 100.0)
    assert table["target"]["params"]["learners"] == 8
    assert [(f["at_s"], f.get("for_s")) for f in table["fault"]] == [(0.0, 50.0), (75.0, None)]
    assert burst_table(TABLE_4[0])["fault"] == []


def test_table_5_s_pattern() -> None:
    found = [speeds(row, seed=1, seconds=300.0) for row in TABLE_5]
    everyone, racing, graceful = found
    assert 0.76 <= everyone.stepping <= 0.88, "the paper says 84 %"
    assert everyone.participants == 8
    assert racing.stepping == pytest.approx(1.0, abs=0.01)
    assert racing.heard < 0.2
    assert racing.participants < 1.2
    assert graceful.stepping == pytest.approx(1.0, abs=0.01)
    assert graceful.heard > 0.75, "a quarter of the window is still in flight at most"


def test_the_pattern_can_fail() -> None:
    def row(stepping: float, heard: float) -> Speeds:
        return Speeds(Mixed(1, True), stepping, 0.0, heard, 1.0, 1.0)

    good = [row(0.84, 0.99), row(1.0, 0.1), row(1.0, 0.9)]
    assert table_5_holds(good)
    for index, (stepping, heard) in enumerate([(0.95, 0.99), (1.0, 0.6), (1.0, 0.5)]):
        assert not table_5_holds([*good[:index], row(stepping, heard), *good[index + 1 :]])


@pytest.mark.slow
def test_scavenged_learners_shorten_the_training() -> None:
    ticks: list[int] = []
    found = scavenged(1, lambda: ticks.append(1), seconds=600.0)
    assert len(ticks) == len(found) == 5
    shares = [f.share for f in found]
    assert shares == sorted(shares, reverse=True)
    for one in found:
        # Coming back costs at most a cycle, which is much of so short a run.
        assert one.burst.bound - 0.01 <= one.share <= one.burst.bound + 0.13


def test_the_command_offers_every_sweep() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    arguments(parser)
    (action,) = [a for a in parser._actions if a.dest == "sweep"]
    assert tuple(action.choices or ()) == tuple(SWEEPS)


@pytest.mark.slow
def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--sweep", "mixed-speeds", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["ok"] is True
    assert [r["row"]["paper_goodput"] for r in value["rows"]] == [84, 100, 100]
