"""Token weights of a merge (paper section 3.2); plain floats."""

from __future__ import annotations


def weight(c_tokens: int, c_steps: int) -> float:
    """Quantity times quality: ``c_tokens * (c_tokens / c_steps)``.

    Raises ``ValueError`` unless both counts are positive: a contribution without a step has
    nothing to say and must not reach a merge.
    """
    if c_tokens <= 0 or c_steps <= 0:
        raise ValueError(f"a weight needs tokens and steps, not {c_tokens} and {c_steps}")
    return c_tokens * c_tokens / c_steps
