"""A headless Chromium of the system's packages, and the playground in it. Nothing is downloaded or kept."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WAIT_S = 90
# One call for all tokens: a call each would take seconds.
READ_TOKENS = """
return [...document.querySelectorAll("#text .token")].map((token) => {
  const style = getComputedStyle(token);
  return {...token.dataset, text: token.textContent, line: style.borderBottomStyle,
          color: style.borderBottomColor, background: style.backgroundColor};
});
"""
READ_TREE = """
return [...document.querySelectorAll("#tree .node")].map((node) => {
  const rect = node.querySelector("rect"), style = getComputedStyle(rect);
  return {state: node.dataset.state, label: node.querySelector("text").textContent, fill: style.fill,
          stroke: style.stroke, dashes: style.strokeDasharray, rounding: rect.getAttribute("rx"),
          y: rect.getAttribute("y")};
});
"""
READ_BARS = """
const drawing = document.getElementById(arguments[0]), [bottom, , top] = drawing.querySelectorAll("line.grid");
const highest = Number([...drawing.querySelectorAll("text.scale")][2].textContent);
const value = highest / (bottom.getAttribute("y1") - top.getAttribute("y1"));
const heights = (bars) => [...bars.getAttribute("d").matchAll(/v-([0-9.e-]+)/g)].map((found) => found[1] * value);
return Object.fromEntries([...drawing.querySelectorAll("path.bar")].map((bars) => [bars.classList[1], heights(bars)]));
"""


class Page:
    """The playground in a browser."""

    def __init__(self, driver: WebDriver, url: str) -> None:
        self.driver = driver
        driver.get(url)

    def find(self, element_id: str) -> WebElement:
        return self.driver.find_element(By.ID, element_id)

    def text_of(self, element_id: str) -> str:
        return str(self.find(element_id).get_property("textContent"))

    def number(self, name: str) -> float:
        return float(self.text_of(f"stat-{name}"))

    def fill(self, mode: str = "tree", **fields: object) -> None:
        self.driver.find_element(By.CSS_SELECTOR, f"label[for=mode-{mode}]").click()
        for name, value in fields.items():
            field = self.find(name)
            field.clear()
            field.send_keys(str(value))

    def run(self, mode: str = "tree", **fields: object) -> dict[str, Any]:
        """Run to the end and return the usage that the API gave the page."""
        self.fill(mode, **fields)
        self.find("run").click()
        self.until("status", "Finished")
        usage: dict[str, Any] = json.loads(self.text_of("usage-body"))
        return usage

    def until(self, element_id: str, start: str) -> None:
        """Wait until an element's text begins with `start`."""
        waiting = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05)
        waiting.until(lambda _: self.text_of(element_id).startswith(start), f"{element_id} does not become {start!r}")

    def tokens(self) -> list[dict[str, str]]:
        return list(self.driver.execute_script(READ_TOKENS))

    def tree(self) -> list[dict[str, str]]:
        return list(self.driver.execute_script(READ_TREE))

    def bars(self, chart_id: str) -> dict[str, list[float]]:
        """Heights of a chart's bars by series, in the unit of its scale; a bar of no height is not drawn."""
        return dict(self.driver.execute_script(READ_BARS, chart_id))

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


def _installed(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            f"{names[0]} is missing: the page's tests need the packages chromium and chromium-driver "
            "(apt-get install -y --no-install-recommends chromium chromium-driver)"
        )
    return found


@contextmanager
def running_browser(profile: Path) -> Iterator[WebDriver]:
    """`profile` is a new, empty folder. Console messages are kept: `driver.get_log("browser")`."""
    options = webdriver.ChromeOptions()
    options.binary_location = _installed("chromium", "chromium-browser", "google-chrome")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_installed("chromedriver")))
    try:
        driver.set_script_timeout(30)
        yield driver
    finally:
        driver.quit()
