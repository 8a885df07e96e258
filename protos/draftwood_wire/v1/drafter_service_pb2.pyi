from draftwood_wire.v1 import sampling_pb2 as _sampling_pb2
from draftwood_wire.v1 import tensor_pb2 as _tensor_pb2
from draftwood_wire.v1 import tree_pb2 as _tree_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterServiceGetInfoResponse(_message.Message):
    __slots__ = ("drafter_id", "version", "vocab_size", "block_size", "target_layer_ids", "hidden_size", "max_node_limit", "connected", "sessions", "context_pages_total", "context_pages_free")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_NODE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    version: str
    vocab_size: int
    block_size: int
    target_layer_ids: _containers.RepeatedScalarFieldContainer[int]
    hidden_size: int
    max_node_limit: int
    connected: bool
    sessions: int
    context_pages_total: int
    context_pages_free: int
    def __init__(self, drafter_id: _Optional[str] = ..., version: _Optional[str] = ..., vocab_size: _Optional[int] = ..., block_size: _Optional[int] = ..., target_layer_ids: _Optional[_Iterable[int]] = ..., hidden_size: _Optional[int] = ..., max_node_limit: _Optional[int] = ..., connected: _Optional[bool] = ..., sessions: _Optional[int] = ..., context_pages_total: _Optional[int] = ..., context_pages_free: _Optional[int] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("token_ids", "features", "sampling", "speculation")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    features: _tensor_pb2.Tensor
    sampling: _sampling_pb2.SamplingParams
    speculation: _sampling_pb2.SpeculationParams
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., features: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., speculation: _Optional[_Union[_sampling_pb2.SpeculationParams, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("tree",)
    TREE_FIELD_NUMBER: _ClassVar[int]
    tree: _tree_pb2.TokenTree
    def __init__(self, tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ...) -> None: ...
