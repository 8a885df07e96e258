"""What a draft step leaves behind for whoever traces it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from draftwood_drafter.device_backend import DeviceBackend
from draftwood_drafter.engine import DraftEngine
from draftwood_drafter.frame_handler import FrameHandler
from draftwood_drafter.loading import load_draft_model
from draftwood_drafter.telemetry import DrafterTelemetry
from draftwood_kernels.device_timer import DeviceTimer
from draftwood_wire import telemetry as names
from draftwood_wire.trace_context import TraceContext
from tests.services.otlp_receiver import receiving
from tests.unit.drafter.frames import chunk, commits, opened
from tests.unit.drafter.pair import FEATURE_WIDTH as WIDTH
from tests.unit.drafter.pair import make_pair


# Features lie in the frame that brought them, and are only read.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("seconds", [0.0, 0.25])
def test_a_draft_tells_what_the_gpu_worked_where_there_is_one(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(tmp_path)
    engine = DraftEngine(
        load_draft_model(pair.target, pair.draft), context_pages=64, page_size=4, make_backend=DeviceBackend
    )
    monkeypatch.setattr(DeviceTimer, "seconds", seconds)
    asked = [TraceContext.root(sampled=True) for _ in range(2)]
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        telemetry = DrafterTelemetry(metrics="")
        telemetry.start(engine, SimpleNamespace(connected=True))
        handler = FrameHandler(engine, telemetry, node_limit=4)
        handler.handle([opened(1, [4, 5, 6], node_limit=4), chunk(WIDTH, 1, 0, 3)])
        for length, context in zip((3, 4), asked, strict=True):
            told = commits(WIDTH, [(1, length, [7], int(length > 3))])
            told.commits.commits[0].traceparent = context.traceparent
            assert handler.handle([told])
        telemetry.close()
    drafts = receiver.named(names.SPAN_DRAFT)
    assert [int(span.span_id, 16) for span in drafts] == [context.span_id for context in asked]
    assert [span.attributes.get(names.DEVICE_TIME, 0.0) for span in drafts] == [seconds] * 2
