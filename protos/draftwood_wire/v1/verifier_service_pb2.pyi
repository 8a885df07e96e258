from draftwood_wire.v1 import sampling_pb2 as _sampling_pb2
from draftwood_wire.v1 import tensor_pb2 as _tensor_pb2
from draftwood_wire.v1 import tree_pb2 as _tree_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "max_tokens", "stop_token_ids", "ignore_eos", "speculation", "report_rounds")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REPORT_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    speculation: _sampling_pb2.SpeculationParams
    report_rounds: bool
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., speculation: _Optional[_Union[_sampling_pb2.SpeculationParams, _Mapping]] = ..., report_rounds: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token_ids", "finish_reason", "usage", "seed", "rounds")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    usage: GenerateUsage
    seed: int
    rounds: _containers.RepeatedCompositeFieldContainer[RoundReport]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[GenerateUsage, _Mapping]] = ..., seed: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[RoundReport, _Mapping]]] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("round", "base_len", "tree", "path", "token_ids", "draft_wait_ms", "verify_ms")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    round: int
    base_len: int
    tree: _tree_pb2.TokenTree
    path: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_wait_ms: float
    verify_ms: float
    def __init__(self, round: _Optional[int] = ..., base_len: _Optional[int] = ..., tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ..., path: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., draft_wait_ms: _Optional[float] = ..., verify_ms: _Optional[float] = ...) -> None: ...

class GenerateUsage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "rounds", "speculative_rounds", "proposed_nodes", "accepted_nodes")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_NODES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    rounds: int
    speculative_rounds: int
    proposed_nodes: int
    accepted_nodes: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., speculative_rounds: _Optional[int] = ..., proposed_nodes: _Optional[int] = ..., accepted_nodes: _Optional[int] = ...) -> None: ...

class SpeculateRequest(_message.Message):
    __slots__ = ("hello", "proposals", "context_request", "session_error")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_ERROR_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    proposals: ProposalBatch
    context_request: ContextRequest
    session_error: SessionError
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., proposals: _Optional[_Union[ProposalBatch, _Mapping]] = ..., context_request: _Optional[_Union[ContextRequest, _Mapping]] = ..., session_error: _Optional[_Union[SessionError, _Mapping]] = ...) -> None: ...

class SpeculateResponse(_message.Message):
    __slots__ = ("welcome", "session_opened", "features", "commits", "session_closed")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SESSION_OPENED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    SESSION_CLOSED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    session_opened: SessionOpened
    features: FeatureChunk
    commits: CommitBatch
    session_closed: SessionClosed
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., session_opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., features: _Optional[_Union[FeatureChunk, _Mapping]] = ..., commits: _Optional[_Union[CommitBatch, _Mapping]] = ..., session_closed: _Optional[_Union[SessionClosed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("drafter_id", "protocol_minor", "vocab_size", "tokenizer_fingerprint", "target_layer_ids", "hidden_size", "block_size", "feature_data_type", "node_limit", "hidden_state_data_type", "num_target_layers")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TARGET_LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATE_DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_TARGET_LAYERS_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    protocol_minor: int
    vocab_size: int
    tokenizer_fingerprint: str
    target_layer_ids: _containers.RepeatedScalarFieldContainer[int]
    hidden_size: int
    block_size: int
    feature_data_type: _tensor_pb2.DataType
    node_limit: int
    hidden_state_data_type: _tensor_pb2.DataType
    num_target_layers: int
    def __init__(self, drafter_id: _Optional[str] = ..., protocol_minor: _Optional[int] = ..., vocab_size: _Optional[int] = ..., tokenizer_fingerprint: _Optional[str] = ..., target_layer_ids: _Optional[_Iterable[int]] = ..., hidden_size: _Optional[int] = ..., block_size: _Optional[int] = ..., feature_data_type: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., node_limit: _Optional[int] = ..., hidden_state_data_type: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., num_target_layers: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_minor", "feature_data_type", "node_limit", "hidden_state_data_type")
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    FEATURE_DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATE_DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    protocol_minor: int
    feature_data_type: _tensor_pb2.DataType
    node_limit: int
    hidden_state_data_type: _tensor_pb2.DataType
    def __init__(self, protocol_minor: _Optional[int] = ..., feature_data_type: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., node_limit: _Optional[int] = ..., hidden_state_data_type: _Optional[_Union[_tensor_pb2.DataType, str]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("session_id", "token_ids", "features_from", "sampling", "speculation", "traceparent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    features_from: int
    sampling: _sampling_pb2.SamplingParams
    speculation: _sampling_pb2.SpeculationParams
    traceparent: str
    def __init__(self, session_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., features_from: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[_Union[_sampling_pb2.SpeculationParams, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ContextRequest(_message.Message):
    __slots__ = ("session_id", "from_position")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    from_position: int
    def __init__(self, session_id: _Optional[int] = ..., from_position: _Optional[int] = ...) -> None: ...

class FeatureChunk(_message.Message):
    __slots__ = ("session_id", "start_position", "features")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    start_position: int
    features: _tensor_pb2.Tensor
    def __init__(self, session_id: _Optional[int] = ..., start_position: _Optional[int] = ..., features: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class CommitBatch(_message.Message):
    __slots__ = ("commits", "features")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    features: _tensor_pb2.Tensor
    def __init__(self, commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., features: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_id", "round", "base_len", "token_ids", "feature_rows", "nodes_verified", "nodes_wanted", "traceparent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_ROWS_FIELD_NUMBER: _ClassVar[int]
    NODES_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    NODES_WANTED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    round: int
    base_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    feature_rows: int
    nodes_verified: int
    nodes_wanted: int
    traceparent: str
    def __init__(self, session_id: _Optional[int] = ..., round: _Optional[int] = ..., base_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., feature_rows: _Optional[int] = ..., nodes_verified: _Optional[int] = ..., nodes_wanted: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ProposalBatch(_message.Message):
    __slots__ = ("proposals",)
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    def __init__(self, proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("session_id", "base_len", "tree", "hidden_states")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    base_len: int
    tree: _tree_pb2.TokenTree
    hidden_states: _tensor_pb2.Tensor
    def __init__(self, session_id: _Optional[int] = ..., base_len: _Optional[int] = ..., tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ..., hidden_states: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class SessionError(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    message: str
    def __init__(self, session_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class SessionClosed(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    def __init__(self, session_id: _Optional[int] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("model_name", "version", "vocab_size", "tokenizer_fingerprint", "context_limit", "eos_token_ids", "max_node_limit")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    version: str
    vocab_size: int
    tokenizer_fingerprint: str
    context_limit: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_node_limit: int
    def __init__(self, model_name: _Optional[str] = ..., version: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_fingerprint: _Optional[str] = ..., context_limit: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_node_limit: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("running_requests", "waiting_requests", "drafters", "kv_pages_total", "kv_pages_free", "committed_tokens", "refused_proposals", "stale_proposals", "drafted_sessions", "steps", "first_tokens", "rounds", "speculative_rounds", "proposed_nodes", "accepted_nodes", "rerooted_proposals", "last_step_nodes", "last_step_requests", "drafter_loads")
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    STALE_PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_NODES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    REROOTED_PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_NODES_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_LOADS_FIELD_NUMBER: _ClassVar[int]
    running_requests: int
    waiting_requests: int
    drafters: int
    kv_pages_total: int
    kv_pages_free: int
    committed_tokens: int
    refused_proposals: int
    stale_proposals: int
    drafted_sessions: int
    steps: int
    first_tokens: int
    rounds: int
    speculative_rounds: int
    proposed_nodes: int
    accepted_nodes: int
    rerooted_proposals: int
    last_step_nodes: int
    last_step_requests: int
    drafter_loads: _containers.RepeatedCompositeFieldContainer[DrafterLoad]
    def __init__(self, running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., drafters: _Optional[int] = ..., kv_pages_total: _Optional[int] = ..., kv_pages_free: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., refused_proposals: _Optional[int] = ..., stale_proposals: _Optional[int] = ..., drafted_sessions: _Optional[int] = ..., steps: _Optional[int] = ..., first_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., speculative_rounds: _Optional[int] = ..., proposed_nodes: _Optional[int] = ..., accepted_nodes: _Optional[int] = ..., rerooted_proposals: _Optional[int] = ..., last_step_nodes: _Optional[int] = ..., last_step_requests: _Optional[int] = ..., drafter_loads: _Optional[_Iterable[_Union[DrafterLoad, _Mapping]]] = ...) -> None: ...

class DrafterLoad(_message.Message):
    __slots__ = ("drafter_id", "sessions", "late", "node_limit")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    sessions: int
    late: bool
    node_limit: int
    def __init__(self, drafter_id: _Optional[str] = ..., sessions: _Optional[int] = ..., late: _Optional[bool] = ..., node_limit: _Optional[int] = ...) -> None: ...
