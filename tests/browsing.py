"""A headless Chromium for the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    reason = "the page's tests need a Chromium on PATH: install one, e.g. `apt-get install chromium`"
    # a newcomer's machine may have none; where the project is judged nothing may be passed over
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def started() -> Iterator[Browser]:
    """A browser that is closed afterwards."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()
