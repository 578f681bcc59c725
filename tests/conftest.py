"""Settings every test shares."""

from __future__ import annotations

import os

# One BLAS thread and no preallocation: tests run side by side on small machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
