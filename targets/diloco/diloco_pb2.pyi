from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("header", "chunk", "checksum")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    chunk: bytes
    checksum: int
    def __init__(self, header: _Optional[bytes] = ..., chunk: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("format", "run", "sender", "incarnation", "clock", "number", "part", "parts", "total", "hello", "report", "push", "heartbeat", "welcome", "pull", "fragment", "refused", "need_state", "state_request", "state_offer", "state_part", "state_ack", "part_saved", "snapshots_kept")
    class ClockEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEED_STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATE_OFFER_FIELD_NUMBER: _ClassVar[int]
    STATE_PART_FIELD_NUMBER: _ClassVar[int]
    STATE_ACK_FIELD_NUMBER: _ClassVar[int]
    PART_SAVED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_KEPT_FIELD_NUMBER: _ClassVar[int]
    format: int
    run: str
    sender: str
    incarnation: int
    clock: _containers.ScalarMap[str, int]
    number: int
    part: int
    parts: int
    total: int
    hello: Hello
    report: Report
    push: Push
    heartbeat: Heartbeat
    welcome: Welcome
    pull: Pull
    fragment: Fragment
    refused: Refused
    need_state: NeedState
    state_request: StateRequest
    state_offer: StateOffer
    state_part: StatePart
    state_ack: StateAck
    part_saved: PartSaved
    snapshots_kept: SnapshotsKept
    def __init__(self, format: _Optional[int] = ..., run: _Optional[str] = ..., sender: _Optional[str] = ..., incarnation: _Optional[int] = ..., clock: _Optional[_Mapping[str, int]] = ..., number: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., total: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., need_state: _Optional[_Union[NeedState, _Mapping]] = ..., state_request: _Optional[_Union[StateRequest, _Mapping]] = ..., state_offer: _Optional[_Union[StateOffer, _Mapping]] = ..., state_part: _Optional[_Union[StatePart, _Mapping]] = ..., state_ack: _Optional[_Union[StateAck, _Mapping]] = ..., part_saved: _Optional[_Union[PartSaved, _Mapping]] = ..., snapshots_kept: _Optional[_Union[SnapshotsKept, _Mapping]] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("dtype", "nbytes", "digest", "absent")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    nbytes: int
    digest: str
    absent: bool
    def __init__(self, dtype: _Optional[str] = ..., nbytes: _Optional[int] = ..., digest: _Optional[str] = ..., absent: _Optional[bool] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("incarnation", "layout", "step", "has_state", "versions")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    layout: str
    step: int
    has_state: bool
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[int] = ..., layout: _Optional[str] = ..., step: _Optional[int] = ..., has_state: _Optional[bool] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("incarnation", "step", "c_steps", "c_tokens", "step_ns")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    C_STEPS_FIELD_NUMBER: _ClassVar[int]
    C_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    step: int
    c_steps: _containers.RepeatedScalarFieldContainer[int]
    c_tokens: _containers.RepeatedScalarFieldContainer[int]
    step_ns: int
    def __init__(self, incarnation: _Optional[int] = ..., step: _Optional[int] = ..., c_steps: _Optional[_Iterable[int]] = ..., c_tokens: _Optional[_Iterable[int]] = ..., step_ns: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("incarnation", "request", "fragment", "since_step", "step", "c_steps", "c_tokens", "base_version", "base_clock", "payload")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    C_STEPS_FIELD_NUMBER: _ClassVar[int]
    C_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_CLOCK_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    request: int
    fragment: int
    since_step: int
    step: int
    c_steps: int
    c_tokens: int
    base_version: int
    base_clock: int
    payload: Payload
    def __init__(self, incarnation: _Optional[int] = ..., request: _Optional[int] = ..., fragment: _Optional[int] = ..., since_step: _Optional[int] = ..., step: _Optional[int] = ..., c_steps: _Optional[int] = ..., c_tokens: _Optional[int] = ..., base_version: _Optional[int] = ..., base_clock: _Optional[int] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("nonce", "echo")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    echo: bool
    def __init__(self, nonce: _Optional[int] = ..., echo: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "versions", "send_state", "donors")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SEND_STATE_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    versions: _containers.RepeatedScalarFieldContainer[int]
    send_state: bool
    donors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incarnation: _Optional[int] = ..., versions: _Optional[_Iterable[int]] = ..., send_state: _Optional[bool] = ..., donors: _Optional[_Iterable[str]] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("request", "fragment")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    request: int
    fragment: int
    def __init__(self, request: _Optional[int] = ..., fragment: _Optional[int] = ...) -> None: ...

class Fragment(_message.Message):
    __slots__ = ("fragment", "version", "committed", "payload")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: int
    committed: int
    payload: Payload
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[int] = ..., committed: _Optional[int] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class NeedState(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class StateRequest(_message.Message):
    __slots__ = ("incarnation", "layout", "stamp")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    layout: str
    stamp: int
    def __init__(self, incarnation: _Optional[int] = ..., layout: _Optional[str] = ..., stamp: _Optional[int] = ...) -> None: ...

class StateOffer(_message.Message):
    __slots__ = ("incarnation", "step", "trained", "moments", "versions", "committed", "digests")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    step: int
    trained: int
    moments: int
    versions: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incarnation: _Optional[int] = ..., step: _Optional[int] = ..., trained: _Optional[int] = ..., moments: _Optional[int] = ..., versions: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class StatePart(_message.Message):
    __slots__ = ("number", "fragment", "payload")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    fragment: int
    payload: Payload
    def __init__(self, number: _Optional[int] = ..., fragment: _Optional[int] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class StateAck(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...

class PartSaved(_message.Message):
    __slots__ = ("marker", "step", "nbytes", "digest", "why")
    MARKER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    marker: int
    step: int
    nbytes: int
    digest: str
    why: str
    def __init__(self, marker: _Optional[int] = ..., step: _Optional[int] = ..., nbytes: _Optional[int] = ..., digest: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class SnapshotsKept(_message.Message):
    __slots__ = ("markers", "upto")
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedScalarFieldContainer[int]
    upto: int
    def __init__(self, markers: _Optional[_Iterable[int]] = ..., upto: _Optional[int] = ...) -> None: ...
