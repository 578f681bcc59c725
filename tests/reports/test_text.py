"""The terminal's summary and the Markdown one, with its byte budget."""

from __future__ import annotations

import msgspec

from reports import text
from reports.build import analyse
from reports.history import fold
from reports.html import render
from reports.schema import Report, Skipped
from tests.reports import hand
from tests.reports.builder import Cluster, Ghost, Kill, Scripted, Straggle, journal


def by_hand() -> Report:
    return analyse(fold(journal(hand.journal()))).report


def test_terminal_says_what_matters() -> None:
    shown = text.terminal(by_hand(), "runs/1/report.html")
    assert shown.startswith("by-hand: PASSED\n")
    assert "goodput           80.0%   of 20.0 learner-seconds" in shown
    assert "merged goodput    56.2%" in shown
    assert "faults         1 planned, 1 executed, 1 effective" in shown
    assert "f1 kill  learner-1  0.50 s  1.00 s   3.50 s  3.70 s  4.50 s      supervisor" in shown
    assert "gate ok   goodput_min: 80.0%, at least 75.0%" in shown
    assert shown.endswith("  report: runs/1/report.html\n")
    assert "\x1b" not in shown


def test_tokens_that_were_taken_back_are_a_cause_of_their_own() -> None:
    tokens = msgspec.structs.replace(by_hand().goodput.tokens, taken_back=12)
    causes = [words for _, words in text.lost_parts(tokens)]
    assert causes == ["overwritten by merges", "died with their learner", "merged and taken back"]
    assert sum(n for n, _ in text.lost_parts(tokens)) == tokens.lost
    assert set(causes) <= set(text.LOST_MEANING)


def test_lost_tokens_are_told_by_cause_and_not_like_lost_time() -> None:
    report = by_hand()
    parts = "17.6% overwritten by merges, 1.2% died with their learner, 14.7% in flight"
    assert f"tokens         170 trained: 66.5% merged, {parts}" in text.terminal(report)
    assert text.TOKENS_SHORT in text.terminal(report)
    assert f"{parts} ({text.TOKENS_NOTE})" in text.summary(report).decode()
    page = render(analyse(fold(journal(hand.journal())))).decode()
    for cause, tokens in (("overwritten by merges", 30), ("died with their learner", 2)):
        assert f'<th scope="row">{cause}</th><td class="n">{tokens}</td>' in page
    assert page.count(text.TOKENS_NOTE) == 2, "at the figures and among the words"
    goodput = report.goodput
    older = msgspec.structs.replace(goodput.tokens, died=None)
    assert "18.8% overwritten by merges or died with their learner" in text.tokens_line(older)
    whole = msgspec.structs.replace(goodput.tokens, merged=None, lost=None, in_flight=None)
    assert text.tokens_line(whole) == "", "a target without fragments has no parts"


def test_effective_faults_without_healing_are_named() -> None:
    faults: list[Scripted] = [Kill("learner-1", 4), Straggle("learner-2", 5, 3)]
    shown = text.terminal(analyse(fold(journal(Cluster(faults=faults).events()))).report)
    why = "no unit was out, so there is nothing to heal"
    assert f"  effective without healing: f2 straggle on learner-2 ({why})" in shown
    alone = analyse(fold(journal(Cluster(faults=faults[1:]).events()))).report
    assert "effective without healing: f1 straggle" in text.terminal(alone)
    assert "without healing" not in text.terminal(by_hand())


def test_an_inconclusive_verdict_never_reads_like_a_pass() -> None:
    report = analyse(
        fold(
            journal(Cluster(faults=[Kill("learner-1", 4)], gate={"healing_p95_s_max": 9}).events())
        )
    ).report
    assert text.title(report) == "NOT SHOWN TO HOLD (inconclusive)"
    ghost = analyse(fold(journal(Cluster(faults=[Ghost("learner-1", 4, 1)]).events()))).report
    assert text.title(ghost) == "NO EFFECT (inconclusive)"
    assert "BROKEN faults-real" in text.terminal(ghost)


def test_summary_is_markdown_with_the_verdict_first() -> None:
    shown = text.summary(by_hand()).decode()
    assert shown.startswith("## ✅ by-hand: PASSED")
    assert "| ✅ | goodput\\_min | 80.0% | at least 75.0% |" in shown
    assert "<details><summary>Where the learners' time went</summary>" in shown


def test_summary_keeps_its_byte_budget_and_says_what_is_missing() -> None:
    report = by_hand()
    whole = text.summary(report)
    assert len(whole) < 1024 * 1024
    for budget in (len(whole) - 1, len(whole) // 2, 1500):
        short = text.summary(report, budget)
        assert len(short) <= budget
        assert b"sections did not fit; see report.html" in short


def test_summary_of_a_huge_report_stays_below_a_mebibyte() -> None:
    report = by_hand()
    row = msgspec.structs.replace(report.faults.rows[0], evidence="x" * 3000)
    long = msgspec.structs.replace(
        report,
        faults=msgspec.structs.replace(report.faults, rows=[row] * 50_000),
        healing=report.healing * 50_000,
    )
    shown = text.summary(long)
    assert len(shown) < 1024 * 1024
    assert b"Showing 500 of 50000." in shown


def test_text_from_logs_cannot_break_the_markdown() -> None:
    report = by_hand()
    evil = "a|b\n# head `code` <script>alert(1)</script> [link](http://x) ![i](y)"
    row = msgspec.structs.replace(report.faults.rows[0], evidence=evil, unit=evil)
    verdict = msgspec.structs.replace(report.verdict, reasons=[evil])
    faults = msgspec.structs.replace(
        report.faults, rows=[row], skipped=[Skipped(fault="f", kind="k", unit="u", why=evil)]
    )
    shown = text.summary(msgspec.structs.replace(report, faults=faults, verdict=verdict)).decode()
    assert "<script" not in shown
    assert "\n# head" not in shown
    assert "a|b" not in shown
    assert "![i]" not in shown


def test_figures_for_people() -> None:
    assert text.percent(None) == "–"
    assert text.percent(0.8766) == "87.7%"
    assert text.duration(None) == "–"
    assert text.duration(0.0) == "0.00 s"
    assert text.duration(0.0301) == "30 ms"
    assert text.duration(12.345) == "12.35 s"
    assert text.figure(None, "s") == "unknown"
    assert text.figure(12345.0, "bytes") == "12,345 bytes"
