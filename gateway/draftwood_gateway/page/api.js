// The gateway's OpenAI endpoints, as much of them as the page needs.

/** What the API, or the way to it, says is wrong. `param` names the field, if one is to blame. */
export class ApiError extends Error {
  constructor(message, param = null) {
    super(message);
    this.param = param;
  }
}

/** `key` is the API key, empty where none is asked for. */
export async function servedModel(key) {
  const response = await call("../v1/models", { headers: authorization(key) });
  return (await response.json()).data[0].id;
}

/** Yields the chunks of one streamed completion; the signal's abort ends it at the server too. */
export async function* complete(request, key, signal) {
  const body = JSON.stringify({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
    draftwood: { rounds: true },
  });
  const headers = { "content-type": "application/json", ...authorization(key) };
  const response = await call("../v1/completions", { method: "POST", headers, body, signal });
  for await (const event of events(response.body)) {
    if (event === "[DONE]") return;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new ApiError(chunk.error.message, chunk.error.param);
    yield chunk;
  }
  throw new ApiError("The stream broke off before its end.");
}

function authorization(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function call(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway does not answer. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const status = `${response.status} ${response.statusText}`.trim();
  try {
    const { error } = await response.json();
    return new ApiError(`${error.message} (${status})`, error.param);
  } catch {
    return new ApiError(`The gateway answered ${status}.`);
  }
}

/** The data of every server-sent event. */
async function* events(body) {
  let rest = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection to the gateway broke.");
      });
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) yield part.replace(/^data: /, "");
    }
  } finally {
    reader.cancel().catch(() => {}); // a stream that broke can't be cancelled any more
  }
}
