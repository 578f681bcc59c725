"""Our own machinery fails: the proxy that carries every link dies and has to be brought back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from faults.base import Capability, Deed, Param


class KillProxy:
    """SIGKILL to the proxy server. It comes back with every link in the state that it was in."""

    kind = "kill_proxy"
    summary = "SIGKILL to the proxy that carries all links; it comes back with all that was on it."
    needs: frozenset[Capability] = frozenset({"proxy"})
    lasting = False
    params: ClassVar[Mapping[str, Param]] = {}

    def deed(self, params: Mapping[str, Any]) -> Deed:
        """See :class:`faults.base.Fault`."""
        return Deed(action="proxy")
