"""Payload faults: which are well formed, which are noticed by the digest or the size."""

from __future__ import annotations

import numpy as np
import pytest

from targets.diloco import codec
from targets.diloco.poison import poisoned

SOUND = np.linspace(0.5, 1.5, 9, dtype=np.float32)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("update", "check"), [("nan", np.isnan), ("inf", np.isinf)])
def test_nonsense_is_well_formed(dtype: str, update: str, check: np.ufunc) -> None:
    got = codec.unpack(poisoned(codec.pack([SOUND], dtype), update), 9)
    assert check(got).nonzero()[0].tolist() == [4]


def test_scaled_is_finite() -> None:
    got = codec.unpack(poisoned(codec.pack([SOUND], "f32"), "scale"), 9)
    np.testing.assert_allclose(got, 1000 * SOUND)


@pytest.mark.parametrize(("update", "kind"), [("bitflip", "checksum"), ("truncate", "truncated")])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_damage_is_noticed(dtype: str, update: str, kind: str) -> None:
    damaged = poisoned(codec.pack([SOUND], dtype), update)
    assert len(damaged.data) == damaged.nbytes
    with pytest.raises(codec.PayloadError, match=f"^{kind}: "):
        codec.unpack(damaged, 9)


@pytest.mark.parametrize("update", ["stale", "duplicate"])
def test_what_the_protocol_does_leaves_the_payload_alone(update: str) -> None:
    payload = codec.pack([SOUND], "f32")
    assert poisoned(payload, update) is payload


def test_an_unknown_update_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="'acid'"):
        poisoned(codec.pack([SOUND], "f32"), "acid")
