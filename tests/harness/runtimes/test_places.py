"""Ports that two runs never share, and folders that follow the environment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.runtimes import places
from harness.runtimes.places import Ports, cache_dir, state_dir, sweep_ports


def test_no_port_is_given_twice_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_FIRST_PORT", 12_000)
    monkeypatch.setattr(places, "_LAST_PORT", 12_019)
    monkeypatch.setattr(places, "_TRIES", 2_000)
    one, two = Ports(directory=tmp_path), Ports(directory=tmp_path)
    taken = [p.take() for _ in range(4) for p in (one, two)]
    assert len(set(taken)) == len(taken)
    one.release()
    one.release()
    again = [two.take() for _ in range(4)]
    assert not set(again) & set(taken[1::2])
    two.release()
    assert list(tmp_path.iterdir()) == []


def test_ports_lie_outside_the_kernels_own_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_ephemeral_range", lambda: (12_100, 64_900))
    monkeypatch.setattr(places, "_TRIES", 20_000)
    ports = Ports(directory=tmp_path)
    for _ in range(20):
        assert not 12_100 <= ports.take() <= 64_900
    ports.release()


def test_a_busy_port_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        monkeypatch.setattr(places, "_FIRST_PORT", port)
        monkeypatch.setattr(places, "_LAST_PORT", port)
        monkeypatch.setattr(places, "_ephemeral_range", lambda: (1, 2))
        with pytest.raises(LaunchError, match=f"between {port} and {port}.*ss -tln"):
            Ports(directory=tmp_path).take()


def test_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DILOCO_CHAOS_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "diloco-chaos" / "jax"
    assert state_dir() == tmp_path / ".local" / "state" / "diloco-chaos" / "runs"
    monkeypatch.setenv("DILOCO_CHAOS_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    assert cache_dir() == tmp_path / "c"
    assert state_dir() == tmp_path / "s" / "diloco-chaos" / "runs"


def test_only_the_ports_of_the_dead_are_swept(tmp_path: Path) -> None:
    living = Ports(directory=tmp_path)
    port = living.take()
    (tmp_path / "12345").touch()
    assert sweep_ports(tmp_path) == [12345]
    assert [p.name for p in tmp_path.iterdir()] == [str(port)]
    living.release()
    assert sweep_ports(tmp_path / "nothing") == []
