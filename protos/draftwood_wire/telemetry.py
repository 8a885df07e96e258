"""Every span, attribute and metric name of the services, and the W3C context that travels with a request.

GenAI, HTTP and RPC semantic conventions where they have a name, `draftwood.*` elsewhere. docs/telemetry.md lists all of
them; a test compares the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

TRACEPARENT = "traceparent"


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The W3C traceparent of an incoming call's metadata, or an empty string."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str):
            return value
    return ""


# Most spans that one service starts to export in any second, whatever the load: half of them for requests, half for
# rounds, steps and drafts. In the long run it is a tenth (`volume.py`): until it is on its way, a span takes the
# interpreter from the loop for nearly 0.1 ms.
SPANS_PER_SECOND = 200

# Spans. The gateway's server span is named after its HTTP route or gRPC method, its generation `<operation> <model>`.
SPAN_GENERATE = "draftwood_wire.v1.VerifierService/Generate"
SPAN_QUEUE = "queue"
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
SPAN_ROUND = "round"
SPAN_STEP = "step"
SPAN_DRAFT = "draft"

SPAN_NAMES = (SPAN_GENERATE, SPAN_QUEUE, SPAN_PREFILL, SPAN_DECODE, SPAN_ROUND, SPAN_STEP, SPAN_DRAFT)

# Unit of every attribute; empty for names, flags and reasons.
ATTRIBUTE_UNITS: dict[str, str] = {}


def _attribute(name: str, unit: str = "") -> str:
    ATTRIBUTE_UNITS[name] = unit
    return name


# Semantic conventions.
OPERATION = _attribute("gen_ai.operation.name")
PROVIDER = _attribute("gen_ai.provider.name")
REQUEST_MODEL = _attribute("gen_ai.request.model")
REQUEST_MAX_TOKENS = _attribute("gen_ai.request.max_tokens", "{token}")
REQUEST_TEMPERATURE = _attribute("gen_ai.request.temperature", "1")
REQUEST_TOP_P = _attribute("gen_ai.request.top_p", "1")
REQUEST_TOP_K = _attribute("gen_ai.request.top_k", "{token}")
FINISH_REASONS = _attribute("gen_ai.response.finish_reasons")
TIME_TO_FIRST_CHUNK = _attribute("gen_ai.response.time_to_first_chunk", "s")
INPUT_TOKENS = _attribute("gen_ai.usage.input_tokens", "{token}")
OUTPUT_TOKENS = _attribute("gen_ai.usage.output_tokens", "{token}")
CACHED_TOKENS = _attribute("gen_ai.usage.cache_read.input_tokens", "{token}")
HTTP_METHOD = _attribute("http.request.method")
HTTP_ROUTE = _attribute("http.route")
HTTP_STATUS = _attribute("http.response.status_code")
RPC_SYSTEM = _attribute("rpc.system.name")
RPC_METHOD = _attribute("rpc.method")
RPC_STATUS = _attribute("rpc.response.status_code")

# A request.
REQUEST_ID = _attribute("draftwood.request.id")
SESSION_ID = _attribute("draftwood.session.id")
MODE = _attribute("draftwood.speculation.mode")
NODE_LIMIT = _attribute("draftwood.speculation.node_limit", "{node}")
RESUMES = _attribute("draftwood.resumes", "{resume}")

# Its decoding as a whole.
ROUNDS = _attribute("draftwood.rounds", "{round}")
PLAIN_STEPS = _attribute("draftwood.plain_steps", "{round}")
NODES = _attribute("draftwood.nodes", "{node}")
ACCEPTED = _attribute("draftwood.accepted", "{node}")
LATE_DRAFTS = _attribute("draftwood.late_drafts", "{round}")
WAIT_TIME = _attribute("draftwood.wait_time", "s")
VERIFY_TIME = _attribute("draftwood.verify_time", "s")
OVERHEAD_TIME = _attribute("draftwood.overhead_time", "s")

# One round; it has NODES, ACCEPTED and the three times as well.
ROUND = _attribute("draftwood.round")
BASE_LENGTH = _attribute("draftwood.base_length", "{token}")
OUTCOME = _attribute("draftwood.outcome")

# One step, or one draft.
STEP = _attribute("draftwood.step")
ROWS = _attribute("draftwood.rows", "{row}")
SESSIONS = _attribute("draftwood.sessions", "{session}")
DEVICE_TIME = _attribute("draftwood.device_time", "s")

# Labels of metrics; OUTCOME and the RPC and HTTP ones are labels too.
REASON = _attribute("draftwood.reason")
STATE = _attribute("draftwood.state")
DEPTH = _attribute("draftwood.depth")
DIRECTION = _attribute("draftwood.direction")
CACHED = _attribute("draftwood.cached")
ROUTE = _attribute("draftwood.route")
STATUS = _attribute("draftwood.status")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One instrument. `labels` are its attributes, `buckets` the upper bounds of a histogram in `unit`."""

    name: str
    kind: Kind
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: list[Metric] = []


def _metric(kind: Kind, name: str, unit: str, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    METRICS.append(Metric(name=name, kind=kind, unit=unit, text=text, labels=labels, buckets=buckets))
    return METRICS[-1]


# Seconds. The conventions' own bounds for time per token begin at 10 ms, which says nothing above 100 tokens a second.
_STEP_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_REQUEST_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_LENGTH = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 32.0)
_NODES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
_SESSIONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_REGRET = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

# Verifier: requests.
REQUESTS = _metric(Kind.COUNTER, "draftwood.verifier.requests", "{request}", "Requests that ended.", RPC_STATUS)
REQUEST_DURATION = _metric(
    Kind.HISTOGRAM, "gen_ai.server.request.duration", "s", "From a request's arrival to its end.", buckets=_REQUEST_S
)
TIME_TO_FIRST_TOKEN = _metric(
    Kind.HISTOGRAM,
    "gen_ai.server.time_to_first_token",
    "s",
    "From a request's arrival to its first token.",
    buckets=_FIRST_TOKEN_S,
)
TIME_PER_OUTPUT_TOKEN = _metric(
    Kind.HISTOGRAM,
    "gen_ai.server.time_per_output_token",
    "s",
    "Decode time of a request over its tokens after the first.",
    buckets=_STEP_S,
)
INTER_TOKEN_LATENCY = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.inter_token_latency",
    "s",
    "Time since a request's last commit over the tokens of this one; one value a round.",
    buckets=_STEP_S,
)
QUEUE_TIME = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.queue_time",
    "s",
    "From a request's arrival to the first step that works on it.",
    buckets=_FIRST_TOKEN_S,
)
PROMPT_TOKENS = _metric(
    Kind.COUNTER, "draftwood.verifier.prompt_tokens", "{token}", "Prompt tokens of requests that got a token.", CACHED
)
ACTIVE_REQUESTS = _metric(
    Kind.GAUGE, "draftwood.verifier.active_requests", "{request}", "Requests that run or wait.", STATE
)
KV_PAGES = _metric(Kind.GAUGE, "draftwood.verifier.kv_pages", "{page}", "Pages of the KV cache.", STATE)

# Verifier: tokens = first tokens + accepted nodes + rounds + plain steps.
TOKENS = _metric(Kind.COUNTER, "draftwood.verifier.tokens", "{token}", "Tokens committed.")
FIRST_TOKENS = _metric(Kind.COUNTER, "draftwood.verifier.first_tokens", "{token}", "Tokens that prefill gave.")
ROUNDS_RUN = _metric(
    Kind.COUNTER, "draftwood.verifier.rounds", "{round}", "Speculative rounds: one session, one step, a tree of nodes."
)
PLAIN_STEPS_RUN = _metric(
    Kind.COUNTER, "draftwood.verifier.plain_steps", "{round}", "Rounds of a session without a tree, by why.", REASON
)
VERIFIED_NODES = _metric(Kind.COUNTER, "draftwood.verifier.verified_nodes", "{node}", "Tree nodes looked at.")
ACCEPTED_NODES = _metric(Kind.COUNTER, "draftwood.verifier.accepted_nodes", "{node}", "Tree nodes committed.")
ACCEPTED_LENGTH = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.accepted_length",
    "{token}",
    "Tokens that a speculative round committed.",
    buckets=_LENGTH,
)
DEPTH_PROPOSED = _metric(
    Kind.COUNTER, "draftwood.verifier.depth_proposed", "{round}", "Rounds whose tree reached this depth.", DEPTH
)
DEPTH_ACCEPTED = _metric(
    Kind.COUNTER, "draftwood.verifier.depth_accepted", "{round}", "Rounds that committed a node of this depth.", DEPTH
)

# Verifier: steps.
STEPS = _metric(Kind.COUNTER, "draftwood.verifier.steps", "{step}", "Forward passes of the target.")
STEP_DURATION = _metric(
    Kind.HISTOGRAM, "draftwood.verifier.step_duration", "s", "A step from start to commit.", buckets=_STEP_S
)
VERIFY_DURATION = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.verify_duration",
    "s",
    "Forward, sampling and walk of a step.",
    buckets=_STEP_S,
)
DEVICE_DURATION = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.device_duration",
    "s",
    "What the GPU worked on a step, by its own events; nothing on a CPU.",
    buckets=_STEP_S,
)
BUDGET_NODES = _metric(
    Kind.HISTOGRAM, "draftwood.verifier.budget_nodes", "{node}", "Nodes chosen for a step.", buckets=_NODES
)
BUDGET_REGRET = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.budget_regret",
    "1",
    "Share of the tokens a second of plain decoding, as predicted, that a step's rounds fell short by.",
    buckets=_REGRET,
)

# Verifier: drafters.
PROPOSALS = _metric(
    Kind.COUNTER, "draftwood.verifier.proposals", "{proposal}", "What became of drafts asked for or sent.", OUTCOME
)
DRAFT_ROUND_TRIP = _metric(
    Kind.HISTOGRAM,
    "draftwood.verifier.draft_round_trip",
    "s",
    "From a commit's sending to the tree that answers it.",
    buckets=_STEP_S,
)
DRAFT_WAIT = _metric(
    Kind.HISTOGRAM, "draftwood.verifier.draft_wait", "s", "What a round waited for its draft.", buckets=_STEP_S
)
SPECULATE_BYTES = _metric(
    Kind.COUNTER, "draftwood.verifier.speculate_bytes", "By", "Bytes of frames on Speculate.", DIRECTION
)
DRAFTERS = _metric(Kind.GAUGE, "draftwood.verifier.drafters", "{drafter}", "Drafters connected.")
DRAFTED_SESSIONS = _metric(
    Kind.GAUGE, "draftwood.verifier.drafted_sessions", "{session}", "Sessions open on a drafter."
)

# Drafter.
DRAFT_DURATION = _metric(
    Kind.HISTOGRAM,
    "draftwood.drafter.draft_duration",
    "s",
    "One draft step: new features, forward, trees.",
    buckets=_STEP_S,
)
DRAFT_BATCH = _metric(
    Kind.HISTOGRAM, "draftwood.drafter.draft_batch", "{session}", "Sessions of a draft step.", buckets=_SESSIONS
)
DRAFTED_NODES = _metric(Kind.COUNTER, "draftwood.drafter.nodes", "{node}", "Nodes of the trees sent.")
DRAFT_FAULTS = _metric(Kind.COUNTER, "draftwood.drafter.faults", "{session}", "Sessions declined.")
DRAFTER_SESSIONS = _metric(Kind.GAUGE, "draftwood.drafter.sessions", "{session}", "Sessions held.")
CONTEXT_PAGES = _metric(Kind.GAUGE, "draftwood.drafter.context_pages", "{page}", "Pages of the draft's KV.", STATE)
CONNECTED = _metric(Kind.GAUGE, "draftwood.drafter.connected", "1", "1 while a verifier has taken this drafter in.")

# Gateway.
GATEWAY_REQUESTS = _metric(
    Kind.COUNTER, "draftwood.gateway.requests", "{request}", "Requests that ended.", ROUTE, STATUS
)
GATEWAY_DURATION = _metric(
    Kind.HISTOGRAM,
    "draftwood.gateway.request_duration",
    "s",
    "From a request's arrival to its last byte.",
    ROUTE,
    buckets=_REQUEST_S,
)
GATEWAY_FIRST_TOKEN = _metric(
    Kind.HISTOGRAM,
    "draftwood.gateway.time_to_first_token",
    "s",
    "From a request's arrival to its first text on the way to the client.",
    buckets=_FIRST_TOKEN_S,
)
IN_FLIGHT = _metric(Kind.GAUGE, "draftwood.gateway.in_flight", "{request}", "Requests being answered.")
GATEWAY_RESUMES = _metric(
    Kind.COUNTER, "draftwood.gateway.resumes", "{resume}", "Streams that went on with another attempt at a verifier."
)
VERIFIERS_UP = _metric(Kind.GAUGE, "draftwood.gateway.verifiers", "{verifier}", "Verifiers that can be reached.")

# Every service.
SPANS_REFUSED = _metric(
    Kind.COUNTER, "draftwood.telemetry.spans_refused", "{span}", "Spans not made, to stay within the volume limit."
)
RECORDS_DROPPED = _metric(
    Kind.COUNTER, "draftwood.telemetry.records_dropped", "{record}", "Records lost because the ring was full."
)
