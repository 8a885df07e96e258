"""Makers and readers of the Speculate stream's frames, with random features."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from draftwood_wire.tensor import tensor_to_proto
from draftwood_wire.v1 import sampling_pb2, verifier_service_pb2

Request = verifier_service_pb2.SpeculateRequest
Response = verifier_service_pb2.SpeculateResponse


def opened(
    session_id: int,
    tokens: list[int],
    features_from: int = 0,
    mode: sampling_pb2.SpeculationMode = sampling_pb2.SPECULATION_MODE_TREE,
    node_limit: int = 0,
) -> Response:
    return Response(
        session_opened=verifier_service_pb2.SessionOpened(
            session_id=session_id,
            token_ids=tokens,
            features_from=features_from,
            sampling=sampling_pb2.SamplingParams(seed=1),
            speculation=sampling_pb2.SpeculationParams(mode=mode, node_limit=node_limit),
        )
    )


def features(rows: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(rows).normal(size=(rows, width)).astype(np.float32)


def chunk(width: int, session_id: int, start: int, rows: int) -> Response:
    tensor = tensor_to_proto(features(rows, width))
    return Response(
        features=verifier_service_pb2.FeatureChunk(session_id=session_id, start_position=start, features=tensor)
    )


def commits(width: int, entries: Iterable[tuple[int, int, list[int], int]], rows: int | None = None) -> Response:
    """Entries are (session, base_len, tokens, feature rows); `rows` overrides the number of rows really sent."""
    batch = [
        verifier_service_pb2.Commit(session_id=i, base_len=base, token_ids=tokens, feature_rows=count)
        for i, base, tokens, count in entries
    ]
    total = sum(commit.feature_rows for commit in batch) if rows is None else rows
    tensor = tensor_to_proto(features(total, width)) if total else None
    return Response(commits=verifier_service_pb2.CommitBatch(commits=batch, features=tensor))


def closed(session_id: int) -> Response:
    return Response(session_closed=verifier_service_pb2.SessionClosed(session_id=session_id))


def proposed(answers: Iterable[Request]) -> dict[int, verifier_service_pb2.Proposal]:
    return {p.session_id: p for answer in answers for p in answer.proposals.proposals}


def errors(answers: Iterable[Request]) -> dict[int, str]:
    return {
        a.session_error.session_id: a.session_error.message for a in answers if a.WhichOneof("frame") == "session_error"
    }
