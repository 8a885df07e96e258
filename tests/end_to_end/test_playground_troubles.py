"""The playground in front of a scripted server: keys, broken streams, halved characters, and no server at all."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest
import uvicorn
from selenium.webdriver.remote.webdriver import WebDriver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from draftwood_gateway.page import page_routes
from tests.end_to_end.browser import Page, running_browser


def chunk(text: str, ends: list[int], rounds: list[dict[str, Any]], finish_reason: str | None = None) -> dict[str, Any]:
    told = {"token_ids": [0] * len(ends), "text_ends": ends, "rounds": rounds}
    return {"choices": [{"index": 0, "text": text, "draftwood": told, "finish_reason": finish_reason}]}


def round_of(kind: str, texts: list[str], nodes: list[str] | None = None) -> dict[str, Any]:
    """A round whose tree is a chain of `nodes` and whose path goes down it."""
    chain = nodes or []
    tree = {
        "token_ids": [0] * len(chain),
        "parents": list(range(len(chain))),
        "log_probs": [-0.5] * len(chain),
        "texts": chain,
    }
    times = {"draft_wait_ms": 1.0, "verify_ms": 2.0}
    return {"kind": kind, "texts": texts, "tree": tree, "path": list(range(len(texts))), **times}


@dataclass(kw_only=True)
class ScriptedServer:
    """Serves the page, and answers every completion with `events`; `key` is the API key that it asks for."""

    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = True  # whether the stream ends as it should
    key: str = ""
    url: str = ""

    async def models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({"data": [{"id": "scripted"}]})

    async def completions(self, request: Request) -> Response:
        return self._refusal(request) or StreamingResponse(self._stream(), media_type="text/event-stream")

    def _refusal(self, request: Request) -> Response | None:
        if not self.key or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        error = {"message": "authorization: an API key is needed", "param": "authorization"}
        return JSONResponse({"error": error}, status_code=401)

    async def _stream(self) -> AsyncIterator[str]:
        for event in self.events:
            yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        if self.done:
            yield "data: [DONE]\n\n"


@contextmanager
def serving(script: ScriptedServer) -> Iterator[None]:
    routes = [
        Route("/v1/models", script.models),
        Route("/v1/completions", script.completions, methods=["POST"]),
        *page_routes(),
    ]
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), lifespan="off", log_config=None, ws="none"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    script.url = f"http://127.0.0.1:{listener.getsockname()[1]}/playground/"
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with running_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


def test_a_key_is_asked_for_only_when_the_server_does(driver: WebDriver) -> None:
    events = [chunk("ok", [2], [round_of("prefill", ["ok"])], "stop")]
    script = ScriptedServer(key="secret", events=events)
    with serving(script):
        page = Page(driver, script.url)
        page.until("error", "authorization: an API key is needed")
        field = page.find("authorization")
        assert field.is_displayed()
        field.send_keys("secret\t")
        page.until("model", "scripted")
        assert not page.find("error").is_displayed()
        page.find("run").click()
        page.until("status", "Finished: 1 token")
        script.key = ""
        assert not Page(driver, script.url).find("authorization").is_displayed()


def test_half_characters_and_a_stop_string(driver: WebDriver) -> None:
    """The emoji is two UTF-16 units and three tokens; the last round has a token that the stop string cut off."""
    events = [
        chunk("a", [1], [round_of("prefill", ["a"])]),
        chunk("", [], [round_of("speculative", ["\\xf0\\x9f", "\\x99"], ["\\xf0\\x9f", "x"])]),
        chunk("🙂b", [2, 2, 2, 3], [round_of("speculative", ["\\x82", "b", "c"], ["\\x82", "b"])], "stop"),
    ]
    script = ScriptedServer(events=events)
    with serving(script):
        page = Page(driver, script.url)
        page.find("run").click()
        page.until("status", "Finished: 5 tokens in 2 rounds")
        tokens = page.tokens()
        assert [token["text"] for token in tokens] == ["a", "🙂", "", "", "b"]
        assert [token["kind"] for token in tokens] == ["prefill", "accepted", "bonus", "accepted", "accepted"]
        assert [token["depth"] for token in tokens] == ["0", "1", "0", "1", "2"]
        assert [node["label"] for node in page.tree()] == ["\\x99", "\\x82", "b", "c"]


def test_a_word_wider_than_the_screen_is_broken(driver: WebDriver) -> None:
    word = "_set_invalid_value" * 8
    script = ScriptedServer(events=[chunk(word, [len(word)], [round_of("prefill", [word])], "stop")])
    metrics = {"width": 320, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        with serving(script):
            page = Page(driver, script.url)
            page.find("run").click()
            page.until("status", "Finished: 1 token")
            assert word in page.text_of("tree-caption")
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 320
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"error": {"message": "no verifier can be reached", "param": None}}], "no verifier can be reached"),
        ([], "The stream broke off before its end."),
    ],
)
def test_a_stream_that_fails_half_way(driver: WebDriver, events: list[dict[str, Any]], message: str) -> None:
    first = chunk("a", [1], [round_of("prefill", ["a"])])
    script = ScriptedServer(events=[first, *events], done=False)
    with serving(script):
        page = Page(driver, script.url)
        page.find("run").click()
        page.until("status", "Failed after 1 token.")
        assert page.text_of("error") == message
        assert [token["text"] for token in page.tokens()] == ["a"]
        assert page.find("run").is_enabled()


def test_a_server_that_is_gone(driver: WebDriver) -> None:
    script = ScriptedServer()
    with serving(script):
        page = Page(driver, script.url)
        page.until("model", "scripted")
    page.find("run").click()
    page.until("status", "Failed.")
    assert page.text_of("error") == "The gateway does not answer. Is it still running?"
