"""Every error keeps its status over the wire, and back."""

import grpc
import pytest

from draftwood_wire import errors


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.MalformedTree, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.MalformedTensor, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
        (errors.UnknownModel, grpc.StatusCode.NOT_FOUND),
        (errors.Incompatible, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
        (errors.DraftwoodError, grpc.StatusCode.INTERNAL),
    ],
)
def test_status_table(kind: type[errors.DraftwoodError], status: grpc.StatusCode) -> None:
    assert errors.status_of(kind("x")) == status
    assert issubclass(kind, type(errors.error_of(status, "x")))
