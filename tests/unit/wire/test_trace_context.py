"""W3C traceparents, and the bound on spans."""

import pytest

from draftwood_wire import volume
from draftwood_wire.trace_context import TraceContext
from draftwood_wire.volume import TokenBucket

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_traceparent_survives_the_way_through() -> None:
    context = TraceContext.parse(GOOD)
    assert context is not None
    assert (context.traceparent, context.sampled) == (GOOD, True)
    child = context.child(sampled=False)
    assert (child.trace_id, child.sampled) == (context.trace_id, False)
    assert child.span_id != context.span_id
    assert TraceContext.parse(child.traceparent) == child


@pytest.mark.parametrize("flags", ["00", "02"])
def test_only_the_lowest_flag_says_sampled(flags: str) -> None:
    context = TraceContext.parse(GOOD[:-2] + flags)
    assert context is not None
    assert not context.sampled


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00-1",
        GOOD.upper(),
        "ff" + GOOD[2:],
        GOOD + "-more",
        "00-" + "0" * 32 + GOOD[35:],
        GOOD[:36] + "0" * 16 + "-01",
        GOOD + "\n",
    ],
)
def test_what_is_no_traceparent_is_ignored(value: str) -> None:
    assert TraceContext.parse(value) is None


def test_a_later_version_may_say_more() -> None:
    assert TraceContext.parse("01" + GOOD[2:] + "-more") == TraceContext.parse(GOOD)


def test_a_bucket_gives_no_more_than_its_rate_in_any_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(volume.time, "monotonic", lambda: now)
    bucket = TokenBucket(40)
    given: list[float] = []
    for _ in range(400):
        if bucket.take(2):
            given += [now, now]
        now += 0.01
    assert 36 <= max(sum(1 for other in given if at <= other < at + 1) for at in given) <= 40
    # Over a long time it is a tenth of that.
    assert len(given) == pytest.approx(36 + 4 * 4, abs=2)
    assert bucket.refused == 800 - len(given)
