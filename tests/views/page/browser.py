"""Chromium without a window, opened on a page from disk."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page

#: Debian's package chromium; playwright's own browsers would be hundreds of megabytes more.
CHROMIUM = shutil.which("chromium")


def available() -> bool:
    return CHROMIUM is not None and all(map(find_spec, ("playwright", "axe_playwright_python")))


class Looking:
    """One page that is looked at, with all messages of its console and all its requests."""

    def __init__(self, context: BrowserContext, path: Path) -> None:
        self.context, self.path = context, path
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.messages.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("[data-ready]")


def errors_of(page: Page) -> list[Any]:
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        (violation["id"], node["target"], node["failureSummary"])
        for violation in violations
        for node in violation["nodes"]
    ]
