"""Makes ``report.png``: the page of ``llama_batches.sqlite``, as Chromium shows it. Needs playwright and chromium."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

import tracekit
from tracekit.views.page.document import page

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1280, 1230


def main() -> None:
    """Writes the picture beside this file."""
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        dataset = tracekit.parse(HERE / "llama_batches.sqlite", Path(folder) / "llama_batches.tracekit")
        html = Path(folder) / "page.html"
        html.write_bytes(page(dataset))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(html.as_uri())
        tab.wait_for_selector("[data-ready]")
        tab.screenshot(path=HERE / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
