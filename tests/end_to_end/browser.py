"""A headless Chromium of the system's packages; nothing is downloaded and nothing is shared between test runs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

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
