"""Both ends of the gRPC link, over loopback: who may speak, in which order, and what is noticed."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import grpc
import pytest

from targets.diloco import transport
from targets.diloco.messages import Fragment, Heartbeat, Payload, Pull
from targets.diloco.transport import (
    DETECTION_BOUND_S,
    METHOD,
    REFUSALS_MAX,
    Listener,
    Outbox,
    Tls,
    Traffic,
)
from targets.diloco.wire import CHUNK_BYTES, CHUNK_BYTES_MIN, Encoder
from tests.targets.diloco.links import (
    LIMITS,
    RUN,
    TOKEN,
    Recorder,
    SilentProxy,
    dialling,
    identity,
    listening,
    until,
)


def fragment(version: int, size: int = 3 * CHUNK_BYTES + 1) -> Fragment:
    data = bytes([version % 256]) * size
    return Fragment(1, version, version, Payload("f32", size, "d", data), {"syncer": version})


def test_messages_pass_both_ways_in_order() -> None:
    with listening() as (listener, syncer), dialling(listener.port) as (dialer, learner):
        until("both ends connected", lambda: learner.up() and syncer.up())
        for n in range(5):
            dialer.send("syncer", Pull(n, 0, {"learner-0": n}))
            listener.send("learner-0", fragment(n))
        until("all arrived", lambda: len(syncer.messages) == 5 and len(learner.messages) == 5)
        assert [m.request for m in syncer.messages] == [0, 1, 2, 3, 4]
        assert [m.version for m in learner.messages] == [0, 1, 2, 3, 4]
        assert all(m.payload.data == fragment(m.version).payload.data for m in learner.messages)
        size = 5 * (3 * CHUNK_BYTES + 1)
        assert size < learner_bytes(dialer) < 1.001 * size
        assert listener.traffic.bytes_out == learner_bytes(dialer)


def learner_bytes(dialer: Any) -> int:
    return int(dialer.traffic.bytes_in)


def test_what_is_queued_is_sent_before_a_learner_leaves() -> None:
    with listening() as (listener, syncer):
        with dialling(listener.port) as (dialer, learner):
            until("connected", learner.up)
            for n in range(20):
                dialer.send("syncer", Pull(n, 0, {}))
        until("all arrived", lambda: len(syncer.messages) == 20)
        until("the syncer noticed", lambda: not syncer.up())


def test_a_syncer_that_goes_and_comes_back_is_found_again() -> None:
    with listening() as (first, _):
        port = first.port
        with dialling(port) as (_, learner):
            until("connected", learner.up)
            first.close()
            until("noticed", lambda: not learner.up())
            second = Listener(
                identity("syncer", incarnation=2),
                LIMITS,
                Recorder(),
                f"127.0.0.1:{port}",
                ["learner-0"],
            )
            second.start()
            until("connected again", learner.up)
            second.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"token": "another"}, "bearer token"),
        ({"token": ""}, "bearer token"),
        ({"run": "run-2"}, "run 'run-2' is not 'run-1'"),
        ({"unit": "learner-9"}, "no learner of this run"),
        ({"unit": "syncer"}, "no learner of this run"),
    ],
)
def test_strangers_are_refused_and_named_once(change: dict[str, Any], why: str) -> None:
    with (
        listening() as (listener, syncer),
        dialling(listener.port, identity(**change)) as (_, learner),
        dialling(listener.port, identity("learner-1")) as (_, friend),
    ):
        until("both ends note it", lambda: learner.told and syncer.told)
        until("others are served", friend.up)
        assert "connected" not in learner.kinds()
        assert ("connected", identity(**change).unit) not in syncer.told
        for sink in (learner, syncer):
            notes = [detail for kind, detail, *_ in sink.told if kind == "connection-refused"]
            assert len(notes) == 1
            assert why in notes[0]


def test_the_token_is_not_printed() -> None:
    assert TOKEN not in repr(identity())


def test_a_newer_life_replaces_an_older_one_for_good() -> None:
    with listening() as (listener, syncer), dialling(listener.port) as (_, old):
        until("connected", old.up)
        with dialling(listener.port, identity(incarnation=2)) as (dialer, new):
            until("the new life is connected", new.up)
            until("the old life is told", lambda: not old.up())
            until("and refused", lambda: "connection-refused" in old.kinds())
            assert "incarnation 1 of 'learner-0' is over" in old.told[-1][1]
            dialer.send("syncer", Pull(7, 0, {}))
            until("the new life is heard", lambda: syncer.messages)
            assert new.up()
            assert syncer.told[:3] == [
                ("connected", "learner-0"),
                ("disconnected", "learner-0", "replaced by a newer session"),
                ("connected", "learner-0"),
            ]


def test_a_link_given_up_is_made_anew_without_telling_the_one_who_gave_it_up() -> None:
    with listening() as (listener, syncer), dialling(listener.port) as (dialer, learner):
        until("connected", lambda: learner.up() and syncer.up())
        dialer.disconnect("syncer", "silent")
        until("again", lambda: learner.kinds() == ["connected", "connected"])
        until("seen there", lambda: syncer.kinds() == ["connected", "disconnected", "connected"])
        listener.disconnect("learner-0", "silent")
        until("again", lambda: syncer.kinds()[3:] == ["connected"])
        until("there as well", lambda: len(learner.told) == 4)
        assert learner.kinds() == ["connected", "connected", "disconnected", "connected"]


@pytest.fixture
def raw() -> Iterator[Any]:
    """Opens streams without our client: raw(port, frames) is a call with valid credentials."""
    channels = []

    def call(port: int, frames: Iterator[bytes]) -> Any:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        channels.append(channel)
        metadata = (
            ("authorization", f"Bearer {TOKEN}"),
            ("x-run", RUN),
            ("x-unit", "learner-0"),
            ("x-incarnation", "1"),
        )
        stub: Any = channel.stream_stream(METHOD)
        return stub(frames, metadata=metadata)

    yield call
    for channel in channels:
        channel.close()


def test_bad_frames_are_noted_and_dropped_and_too_many_end_the_link(raw: Any) -> None:
    good = next(Encoder(RUN, "learner-0", 1).frames(Pull(1, 0, {})))
    foreign = next(Encoder("run-2", "learner-0", 1).frames(Pull(1, 0, {})))
    with listening() as (listener, syncer):
        call = raw(listener.port, iter([foreign, b"noise", good, *[b"noise"] * REFUSALS_MAX]))
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() is grpc.StatusCode.ABORTED
        assert "refused frames in a row" in str(ended.value.details())
        until("the link is down", lambda: not syncer.up())
        assert len(syncer.messages) == 1
        notes = [entry[1] for entry in syncer.told if entry[0] == "frame-refused"]
        assert len(notes) == 2 + REFUSALS_MAX
        assert notes[0].startswith("from learner-0: run: frame of run 'run-2'")


def test_a_frame_of_more_than_the_bound_never_reaches_us(raw: Any) -> None:
    with listening() as (listener, syncer):
        call = raw(listener.port, iter([b"x" * (2 * CHUNK_BYTES)]))
        with pytest.raises(grpc.RpcError):
            list(call)
        until("the link is down", lambda: syncer.kinds()[-1:] == ["disconnected"])
        assert syncer.messages == []


def test_an_incarnation_that_is_no_number_is_refused(raw: Any) -> None:
    with listening() as (listener, _):
        channel = grpc.insecure_channel(f"127.0.0.1:{listener.port}")
        stub: Any = channel.stream_stream(METHOD)
        metadata = (
            ("authorization", f"Bearer {TOKEN}"),
            ("x-run", RUN),
            ("x-unit", "learner-0"),
            ("x-incarnation", "-1"),
        )
        with pytest.raises(grpc.RpcError) as refused:
            list(stub(iter([]), metadata=metadata))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        channel.close()


def test_a_peer_that_does_not_read_loses_its_link(raw: Any) -> None:
    stop = threading.Event()

    def nothing() -> Iterator[bytes]:
        stop.wait()
        yield from ()

    with listening() as (listener, syncer):
        call = raw(listener.port, nothing())
        until("connected", syncer.up)
        message = fragment(1, 4 << 20)
        for _ in range(transport.OUTBOX_BYTES_MIN // (4 << 20) + 8):
            listener.send("learner-0", message)
        until("the link is closed", lambda: not syncer.up())
        assert "the peer does not read" in syncer.told[-1][2]
        stop.set()
        call.cancel()


def test_an_outbox_is_bounded_and_lets_heartbeats_overtake() -> None:
    outbox = Outbox(bytes_max=3 * CHUNK_BYTES, messages_max=4)
    beat = Heartbeat(1, False, {})
    assert outbox.put(fragment(1, 2 * CHUNK_BYTES))
    assert not outbox.put(fragment(2, 2 * CHUNK_BYTES))  # too many bytes
    assert [outbox.put(Pull(n, 0, {})) for n in range(3)] == [True] * 3
    assert not outbox.put(Pull(9, 0, {}))  # too many messages
    frames = outbox.frames(Encoder(RUN, "syncer", 1), Traffic())
    assert len(next(frames)) > CHUNK_BYTES_MIN
    assert outbox.put(beat)
    sizes = [len(next(frames)) for _ in range(5)]
    assert sizes[0] < 1000 < CHUNK_BYTES_MIN < sizes[1]  # the heartbeat, then the second chunk
    outbox.close()
    assert list(frames) == []
    assert outbox.put(beat)  # of no use, and no error


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            Listener(identity("syncer"), LIMITS, Recorder(), f"127.0.0.1:{port}", [])


def test_both_ends_bound_the_answer_to_a_ping() -> None:
    for options in (transport.CLIENT_OPTIONS, transport.SERVER_OPTIONS):
        values = dict([*options, *identity("syncer").patience()])
        total_ms = values["grpc.keepalive_time_ms"] + values["grpc.http2.ping_timeout_ms"]
        assert total_ms < 1000 * DETECTION_BOUND_S


def test_slow_links_get_as_much_time_for_pings_as_the_protocol_gives_them() -> None:
    assert transport.ping_timeout_ms(1500) == transport.PING_TIMEOUT_MS
    assert transport.ping_timeout_ms(100) == transport.PING_TIMEOUT_MS
    assert transport.ping_timeout_ms(8000) == 7500


@pytest.mark.slow
@pytest.mark.parametrize("talking", [False, True], ids=["idle", "talking"])
def test_a_half_open_link_is_noticed_on_both_ends_and_made_anew(
    talking: bool, record_property: Any
) -> None:
    """Without the ping timeout this takes a minute, so twice the bound can tell them apart."""
    stop = threading.Event()

    def talk(send: Any, peer: str) -> None:
        while not stop.wait(0.1):
            send(peer, Heartbeat(1, True, {}))

    with (
        listening() as (listener, syncer),
        SilentProxy(listener.port) as proxy,
        dialling(proxy.port) as (dialer, learner),
    ):
        until("connected", lambda: learner.up() and syncer.up())
        if talking:
            for send, peer in ((dialer.send, "syncer"), (listener.send, "learner-0")):
                threading.Thread(target=talk, args=(send, peer), daemon=True).start()
            until("they talk", lambda: syncer.messages and learner.messages)
        proxy.silent = True
        times: dict[str, float] = {}
        ends = {"learner": learner, "syncer": syncer}

        def noticed() -> bool:
            for name, sink in ends.items():
                if name not in times and not sink.up():
                    times[name] = silent_for()
            return len(times) == 2

        silent_for = stopwatch()
        until("both ends notice", noticed, 2 * DETECTION_BOUND_S)
        for name, seconds in times.items():
            record_property(f"detected_by_{name}_s", round(seconds, 3))
        proxy.silent = False
        until("both ends are connected again", lambda: learner.up() and syncer.up())
        stop.set()


def stopwatch() -> Any:
    from time import monotonic

    began = monotonic()
    return lambda: monotonic() - began


def test_a_server_that_never_answers_does_not_stop_the_dialling() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with dialling(port) as (_, learner):
            accepted, _ = silent.accept()
            assert learner.told == []
            accepted.close()
            silent.close()
            listener = Listener(
                identity("syncer"), LIMITS, Recorder(), f"127.0.0.1:{port}", ["learner-0"]
            )
            listener.start()
            until("connected in the end", learner.up)
            listener.close()


# --- certificates -------------------------------------------------------------------------------


def _openssl(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    """A certificate for each of three units, of one authority."""
    if which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    home = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        *("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem"),
        *("-subj", "/CN=authority", "-days", "2"),
        cwd=home,
    )
    found = {}
    for name in ("syncer", "learner-0", "learner-1"):
        (home / f"{name}.ext").write_text(f"subjectAltName=DNS:{name}\n")
        _openssl(
            *("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr"),
            *("-subj", f"/CN={name}"),
            cwd=home,
        )
        _openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext"),
            cwd=home,
        )
        found[name] = Tls(home / "ca.pem", home / f"{name}.pem", home / f"{name}.key")
    return found


def test_mutual_tls_admits_the_unit_that_the_certificate_names(
    certificates: dict[str, Tls],
) -> None:
    with (
        listening(tls=certificates["syncer"]) as (listener, syncer),
        dialling(listener.port, tls=certificates["learner-0"]) as (dialer, learner),
        dialling(listener.port, tls=certificates["learner-1"]) as (_, liar),
        dialling(listener.port, identity("learner-1")) as (_, plain),
    ):
        until("connected", learner.up)
        dialer.send("syncer", Pull(1, 0, {}))
        until("heard", lambda: syncer.messages)
        until("the liar is refused", lambda: "connection-refused" in liar.kinds())
        assert "certificate is not for 'learner-0'" in liar.told[0][1]
        assert plain.told == []
