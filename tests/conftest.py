"""Settings every test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# One BLAS thread and no preallocation: tests run side by side on small machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A busy machine is no failure: tests are not timed.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
