"""The playground in a real browser, in front of the real services: what it shows is what the API counts."""

from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.end_to_end.browser import WAIT_S, Page, running_browser
from tests.services.processes import Services, wait_for

PROMPT = 'class Queue:\n    """A first-in, first-out queue."""\n'


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with running_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def page(driver: WebDriver, services: Services) -> Page:
    wait_for(lambda: services.load().running_requests == 0, "the verifier is idle")
    return Page(driver, f"http://{services.stack.http}/")


def test_tree_colours_and_counters_are_those_of_the_api(page: Page, services: Services) -> None:
    before = services.load()
    fields = {"prompt": PROMPT, "temperature": 0.8, "seed": 7, "max_tokens": 96, "node_limit": 12}
    usage = page.run("tree", **fields)
    after, own = services.load(), usage["draftwood"]
    for name in ("rounds", "speculative_rounds", "proposed_nodes", "accepted_nodes"):
        assert getattr(after, name) - getattr(before, name) == own[name]
    assert own["accepted_nodes"] > 0

    tokens = page.tokens()
    kinds = Counter(token["kind"] for token in tokens)
    assert len(tokens) == usage["completion_tokens"] == 96
    assert kinds["accepted"] == own["accepted_nodes"]
    assert kinds["bonus"] == own["speculative_rounds"]
    assert kinds["plain"] == own["rounds"] - own["speculative_rounds"]
    assert kinds["prefill"] == 1
    body = {**fields, "speculation": "off"}
    answer = httpx.post(f"http://{services.stack.http}/v1/completions", json=body, timeout=60)
    assert "".join(token["text"] for token in tokens) == answer.json()["choices"][0]["text"]

    assert page.number("tokens") == usage["completion_tokens"]
    assert page.number("rounds") == own["rounds"]
    assert page.number("accepted") == own["accepted_nodes"]
    assert page.number("proposed") == own["proposed_nodes"]
    assert page.number("length") == pytest.approx(own["accepted_length"], abs=0.006)
    assert page.number("verify") > 0
    assert page.number("draft") > 0
    assert page.number("speed") > 0
    assert page.console() == []

    by_round = _step_back_through(page, own["rounds"])
    states = Counter(node["state"] for nodes in by_round for node in nodes)
    assert states["accepted"] == own["accepted_nodes"]
    assert states["accepted"] + states["cut"] == own["proposed_nodes"]
    assert (states["bonus"], states["prefill"], states["root"]) == (own["speculative_rounds"], 1, own["rounds"] + 1)
    for number, nodes in enumerate(by_round):
        depths = [int(token["depth"]) for token in tokens if int(token["round"]) == number]
        assert depths == [*range(1, len(depths)), 0], "the tokens of a round are its path and one of the target's own"
        path = [node for node in nodes if node["state"] == "accepted"]
        assert len(path) == len(depths) - 1
        assert len({node["y"] for node in nodes if node["state"] not in ("cut",)}) == 1, "the path is one straight line"


def test_charts_show_every_round(page: Page) -> None:
    usage = page.run("tree", prompt=PROMPT, temperature=0.8, seed=9, max_tokens=96, node_limit=12)
    own, tokens = usage["draftwood"], page.tokens()
    lengths = [sum(int(token["round"]) == number for token in tokens) for number in range(own["rounds"] + 1)]
    bars = page.bars("length-chart")
    assert bars["bonus"] == pytest.approx([1.0] * len(lengths))
    assert bars["accepted"] == pytest.approx([length - 1 for length in lengths if length > 1])
    assert sum(bars["accepted"]) == pytest.approx(own["accepted_nodes"])
    times = page.bars("time-chart")
    # The first is the prompt's own, which the counters leave out.
    assert len(times["verify"]) == len(lengths)
    assert sum(times["verify"][1:]) / own["rounds"] == pytest.approx(page.number("verify"), abs=0.06)
    assert sum(times["draft"]) / own["rounds"] == pytest.approx(page.number("draft"), abs=0.06)


def _step_back_through(page: Page, rounds: int) -> list[list[dict[str, str]]]:
    """The tree of every round, reached by the slider's keys."""
    slider = page.find("round")
    slider.send_keys(Keys.HOME)
    trees = []
    for number in range(rounds + 1):
        assert page.text_of("round-label") == f"round {number} of {rounds}"
        trees.append(page.tree())
        slider.send_keys(Keys.ARROW_RIGHT)
    return trees


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_differ_in_colour_and_in_shape(page: Page, scheme: str) -> None:
    emulated = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
    page.run("tree", prompt=PROMPT, temperature=0, max_tokens=64, node_limit=12)
    tokens = {token["kind"]: token for token in page.tokens()}
    assert tokens.keys() >= {"accepted", "bonus", "prefill"}
    for name in ("line", "color", "background"):
        assert len({tokens[kind][name] for kind in ("accepted", "bonus", "prefill")}) == 3, name
    depths = {token["depth"]: token["background"] for token in page.tokens() if token["kind"] == "accepted"}
    assert len(set(depths.values())) == min(len(depths), 6)

    nodes: dict[str, dict[str, str]] = {}
    for tree in _step_back_through(page, int(page.number("rounds"))):
        nodes |= {node["state"]: node for node in tree}
    for name in ("fill", "stroke"):
        assert len({nodes[state][name] for state in ("accepted", "bonus", "cut")}) == 3, name
    shapes = {(nodes[state]["dashes"], nodes[state]["rounding"]) for state in ("accepted", "bonus", "cut")}
    assert len(shapes) == 3


@pytest.mark.parametrize("mode", ["off", "chain", "auto"])
def test_modes(page: Page, mode: str) -> None:
    own = page.run(mode, prompt=PROMPT, temperature=0, max_tokens=40)["draftwood"]
    found = Counter(token["kind"] for token in page.tokens())
    assert found["accepted"] == own["accepted_nodes"]
    assert found["plain"] == own["rounds"] - own["speculative_rounds"]
    if mode == "off":
        assert own["speculative_rounds"] == 0
        assert [node["state"] for node in page.tree()] == ["root", "plain"]
    if mode == "chain":
        trees = _step_back_through(page, own["rounds"])
        assert any(node["state"] == "accepted" for tree in trees for node in tree)
        # Beside the path there is at most the rest of the chain, below the target's own token.
        assert all(len({node["y"] for node in tree}) <= 2 for tree in trees)


def test_stop_ends_the_run_here_and_at_the_verifier(page: Page, services: Services) -> None:
    page.fill("off", prompt=PROMPT, temperature=1, seed=3, max_tokens=900)
    page.find("prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    WebDriverWait(page.driver, WAIT_S, poll_frequency=0.01).until(lambda _: len(page.tokens()) > 3)
    page.find("stop").click()
    page.until("status", "Stopped after")
    assert 3 < len(page.tokens()) < 900
    assert page.find("run").is_enabled()
    wait_for(lambda: services.load().running_requests == 0, "the verifier lets go of the request")


def test_an_error_is_shown_at_its_field(page: Page) -> None:
    page.fill("tree", prompt=PROMPT, max_tokens=100000)
    page.find("run").click()
    page.until("status", "Failed")
    error = page.find("error")
    assert error.is_displayed()
    assert error.text.startswith("max_tokens: 100000 exceeds")
    field = page.find("max_tokens")
    assert (field.get_attribute("aria-invalid"), field.get_attribute("aria-describedby")) == ("true", "error")
    assert page.driver.switch_to.active_element == field
    page.run("tree", prompt=PROMPT, max_tokens=8)
    assert not error.is_displayed()
    assert field.get_attribute("aria-invalid") is None
    # The browser itself notes the refusal; nothing else is in the log.
    assert all("400" in message for message in page.console())


@pytest.mark.parametrize("width", [320, 768, 1360])
def test_no_width_needs_sideways_scrolling(page: Page, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.run("tree", prompt=PROMPT, temperature=0.8, seed=8, max_tokens=60, node_limit=64)
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_control_has_a_name(page: Page) -> None:
    unnamed = page.driver.execute_script("""
        return [...document.querySelectorAll("input, textarea, button, [role=region], section")].filter((one) =>
          !(one.labels?.length || one.ariaLabel || one.getAttribute("aria-labelledby") || one.textContent.trim())
        ).map((one) => one.outerHTML);
    """)
    assert unnamed == []
