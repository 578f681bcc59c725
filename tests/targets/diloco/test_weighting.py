"""Token weights."""

from __future__ import annotations

import pytest

from targets.diloco.weighting import weight


def test_quantity_times_quality() -> None:
    assert weight(1000, 10) == 100_000.0
    assert weight(1000, 20) == weight(1000, 10) / 2
    assert weight(2000, 10) == 4 * weight(1000, 10)


@pytest.mark.parametrize(("tokens", "steps"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_nothing_has_no_weight(tokens: int, steps: int) -> None:
    with pytest.raises(ValueError, match="tokens and steps"):
        weight(tokens, steps)
