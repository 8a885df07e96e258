"""Everything that can go wrong between two processes, and the gRPC status it becomes.

DraftwoodError
├── InvalidRequest        INVALID_ARGUMENT      a field of the request is wrong; the message names it
│   ├── MalformedTree                           a tree breaks the format
│   └── MalformedTensor                         dtype, shape and bytes disagree
├── Unauthenticated       UNAUTHENTICATED       no API key, or one that is not known here
├── UnknownModel          NOT_FOUND             the model asked for is not served here
├── Incompatible          FAILED_PRECONDITION   a drafter does not fit the target
├── Overloaded            RESOURCE_EXHAUSTED    no room now; the same request may pass later
└── Unavailable           UNAVAILABLE           stopping, or no verifier can be reached
"""

import grpc


class DraftwoodError(Exception):
    """Its text is shown to the peer."""


class InvalidRequest(DraftwoodError):
    pass


class MalformedTree(InvalidRequest):
    pass


class MalformedTensor(InvalidRequest):
    pass


class Unauthenticated(DraftwoodError):
    pass


class UnknownModel(DraftwoodError):
    pass


class Incompatible(DraftwoodError):
    pass


class Overloaded(DraftwoodError):
    pass


class Unavailable(DraftwoodError):
    pass


_STATUS: list[tuple[type[DraftwoodError], grpc.StatusCode]] = [
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (UnknownModel, grpc.StatusCode.NOT_FOUND),
    (Incompatible, grpc.StatusCode.FAILED_PRECONDITION),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
]


def status_of(error: DraftwoodError) -> grpc.StatusCode:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return grpc.StatusCode.INTERNAL


def error_of(status: grpc.StatusCode, details: str) -> DraftwoodError:
    """The inverse of `status_of`, for the side that receives the status."""
    for kind, known in _STATUS:
        if known == status:
            return kind(details)
    return DraftwoodError(f"{status.name}: {details}")
