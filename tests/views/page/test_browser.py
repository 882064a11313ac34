"""The page in a real browser: what it shows, what can be done with it, and that it loads and runs nothing else."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

import tracekit
from tests.command import ROOT
from tests.sqlite import writing
from tests.trace_lines import report
from tests.views.page.browser import CHROMIUM, Looking, errors_of
from tests.views.page.colour_difference import least_differences
from tests.views.page.test_colours import PLAIN
from tests.waiting import wait_until
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import duration, percent
from tracekit.views.page.document import document, page

pytestmark = pytest.mark.browser

BAD = "<img src=x onerror=alert(1)>"
WORSE = "</script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def look(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Looking]]:
    opened: list[Looking] = []

    def at(text: bytes, **context: Any) -> Looking:
        path = tmp_path / f"page{len(opened)}.html"
        path.write_bytes(text)
        opened.append(Looking(browser.new_context(**context), path))
        return opened[-1]

    yield at
    for one in opened:
        one.context.close()
        assert one.messages == []
        assert one.requests == [one.path.as_uri()]


@pytest.fixture
def shown(look, llama) -> Page:
    return look(page(llama)).page


def cell(shown: Page, name: str) -> Any:
    return shown.locator("#icicle [role=treeitem]", has_text=name).first


def test_a_device_that_waits_for_the_first_launch_of_a_step_is_idle(look, parsed) -> None:
    dataset = parsed("""
        range  1   0 400 {'Step': 0, 'Name': 'ProfilerStep', 'Kind': 'train'}
        launch 1 300 310 #1
        kernel 1 310 360 #1 gemm
        launch 1 320 330 #2
        kernel 1 370 400 #2 gemm
    """)
    said = " ".join(look(page(dataset)).page.locator("#tiles").inner_text().split())
    assert "Device idle 80.0 % 320 ns of a step; between work 10 ns in 1 gap, longest 10 ns" in said


def test_a_click_looks_into_a_module_everywhere_and_a_crumb_goes_back(shown) -> None:
    assert shown.locator("h1").inner_text() == "small_llama"
    assert "5.92 ms" in shown.locator("#tiles").inner_text()
    cell(shown, "mlp").click()
    crumbs = shown.locator("#crumbs li")
    assert crumbs.all_inner_texts()[-1] == "mlp"
    assert shown.locator("#card .value").inner_text().startswith("62.0 %")
    rows = shown.locator("#modules-table tbody tr")
    assert rows.count() == 3
    assert all(".mlp" in text for text in rows.all_inner_texts())
    kernels = shown.locator("#kernels-table tbody tr")
    assert [text.split()[0] for text in kernels.all_inner_texts()] == ["gate_up_proj_kernel", "down_proj_kernel"]
    crumbs.nth(0).locator("button").click()
    assert shown.locator("#crumbs li").count() == 1
    assert rows.count() == 14


def test_the_keyboard_alone_reaches_everything(shown) -> None:
    focused = "document.activeElement.textContent"
    shown.locator("#icicle [tabindex='0']").focus()
    for key, expected in [("ArrowDown", "LlamaForCausalLM"), ("ArrowDown", "model"), ("ArrowUp", "LlamaForCausalLM")]:
        shown.keyboard.press(key)
        assert shown.evaluate(focused).startswith(expected)
    shown.keyboard.press("Enter")
    assert shown.locator("#crumbs li").all_inner_texts()[-1] == "LlamaForCausalLM"
    shown.keyboard.press("Escape")
    assert shown.locator("#crumbs li").count() == 1
    shown.keyboard.press("/")
    shown.keyboard.type("ATTN")
    assert shown.locator("#modules-table tbody tr").count() == 4
    shown.keyboard.press("Tab")
    shown.locator("#modules-table th[data-column=calls] button").focus()
    shown.keyboard.press("Enter")
    assert shown.locator("th[data-column=calls]").first.get_attribute("aria-sort") == "descending"
    assert shown.evaluate(focused) == "calls"
    shown.locator("#canvas").focus()
    shown.keyboard.press("ArrowRight")
    assert "kernel" in shown.locator("#timeline-piece").inner_text()
    before = shown.evaluate("document.querySelector('#announcement').textContent")
    shown.keyboard.press("ArrowRight")
    assert shown.evaluate("document.querySelector('#announcement').textContent") != before
    shown.keyboard.press("Enter")
    assert shown.locator("#crumbs li").count() > 3


def test_tables_sort_by_any_column_and_search_finds_classes_paths_and_single_modules(shown) -> None:
    head = shown.locator("#modules-table th[data-column=self_ns]")
    column = shown.locator("#modules-table tbody td:nth-child(2)")
    assert head.get_attribute("aria-sort") == "descending"
    descending = column.all_inner_texts()
    assert descending[0].strip() == "1.91 ms"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column.all_inner_texts() == descending[::-1] or column.first.inner_text().strip() == "0 ns"
    shown.locator("#search-modules").fill("layers.2.mlp")
    shown.locator("#unfold-place button").click()
    paths = shown.locator("#modules-table tbody .path").all_inner_texts()
    assert len(paths) == 3
    assert all("layers.2.mlp" in path for path in paths)
    shown.locator("#search-kernels").fill("no such thing")
    assert "no matching rows" in shown.locator("#kernels-table").inner_text()


PIXELS = "document.querySelector('#canvas').toDataURL()"


def redrawn(shown: Page, act: Callable[[], object]) -> None:
    """Does something, and waits until the timeline looks otherwise than before."""
    before = shown.evaluate(PIXELS)
    act()
    wait_until(lambda: shown.evaluate(PIXELS) != before)


def timeline_of(shown: Page) -> tuple[float, float, float]:
    shown.locator("#canvas").scroll_into_view_if_needed()
    box = shown.locator("#canvas").bounding_box()
    assert box is not None
    return box["x"], box["y"], box["y"] + box["height"]


def test_the_timeline_tells_and_chooses_what_is_under_the_pointer(shown) -> None:
    left, _, bottom = timeline_of(shown)
    # The host runs so far ahead that only the work of the device is in view.
    summary = shown.locator("#timeline-summary")
    assert summary.inner_text().endswith("The host ran 2.72 ms ahead: Fit shows its calls, too.")
    redrawn(shown, shown.locator("#zoom-all").click)
    shown.mouse.move(left + 1100, bottom - 25)
    assert "LlamaForCausalLM.model.layers" in shown.locator("#tip").inner_text()
    shown.mouse.click(left + 1100, bottom - 25)
    assert shown.locator("#crumbs li").count() > 4
    options = shown.locator("#drawn option").all_inner_texts()
    assert options[0].startswith("Median decode step")
    assert any("whole recording" in option.lower() for option in options)
    shown.locator("#drawn").select_option(str(len(options) - 1))
    assert "500 kernels" in shown.locator("#timeline-summary").inner_text()


def test_the_timeline_zooms_and_moves_and_tells_who_launched_a_kernel(shown) -> None:
    assert "calls on 1 thread of the host" in shown.locator("#timeline-summary").inner_text()
    shown.locator("#canvas").focus()
    redrawn(shown, lambda: shown.keyboard.press("ArrowRight"))
    assert "launched by cudaLaunchKernel" in shown.locator("#timeline-piece").inner_text()
    cell(shown, "mlp").click()
    shown.wait_for_timeout(50)
    redrawn(shown, shown.locator("#zoom-node").click)
    left, top, _ = timeline_of(shown)

    def wheel() -> None:
        shown.mouse.move(left + 60, top + 20)
        shown.locator("#canvas").focus()
        shown.mouse.wheel(0, -300)

    def drag() -> None:
        shown.mouse.move(left + 300, top + 20)
        shown.mouse.down()
        shown.mouse.move(left + 200, top + 20)
        shown.mouse.up()

    keys = [lambda key=key: shown.locator("#canvas").press(key) for key in "wds0"]
    for move in (shown.locator("#zoom-in").click, wheel, drag, *keys):
        redrawn(shown, move)


def test_names_with_markup_in_them_are_text(look, tmp_path: Path) -> None:
    marker = json.dumps({"Module": f"top.{BAD}", "Class": WORSE})
    lines = f"""
        range  1   0 1000 {json.dumps({"Module": "top", "Class": BAD})}
        range  1  10  500 {marker}
        launch 1  20   30 #1
        kernel 1  40  140 #1 {WORSE}{BAD}
        kernel 1 500  600 #9 {BAD}
    """
    one = tracekit.parse(report(tmp_path / f"{BAD.replace('/', '')}.sqlite", lines), tmp_path / BAD)
    other = tracekit.parse(
        report(tmp_path / "b.sqlite", lines.replace(" 140 ", " 240 ")), tmp_path / f"{BAD}2.tracekit"
    )
    several = tracekit.parse([tmp_path / f"{BAD.replace('/', '')}.sqlite", tmp_path / "b.sqlite"], tmp_path / "c")
    for datasets in ((one, other), (several,)):
        looking = look(page(*datasets))
        shown = looking.page
        assert shown.locator("img, main script").count() == 0
        text = shown.locator("body").inner_text()
        assert BAD in text
        assert WORSE in text
        shown.locator("#canvas").focus()
        shown.keyboard.press("ArrowRight")
        assert WORSE in shown.locator("#timeline-piece").inner_text()


def test_what_changed_is_told_in_words_and_opened_for_its_kernels(look, llama, tmp_path: Path) -> None:
    slower = tmp_path / "slower.sqlite"
    shutil.copy(ROOT / "data" / "small_llama.sqlite", slower)
    with writing(slower) as db:
        db.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + (end - start) * 2 WHERE shortName IN "
            "(SELECT id FROM StringIds WHERE value = 'o_proj_kernel')"
        )
    shown = look(page(tracekit.parse(slower), llama)).page
    text = shown.locator("#changes").inner_text()
    assert "small_llama → slower" in text
    assert "+100.0 %" in text
    shown.locator("#changes tbody summary").first.click()
    assert "o_proj_kernel" in shown.locator("#changes .changed details[open]").inner_text()
    rows = shown.locator("#changes .changed tbody tr").count()
    shown.locator("#changes button", has_text="more").click()
    assert shown.locator("#changes .changed tbody tr").count() > rows
    assert (
        shown.locator("#changes .layers tbody tr", has_text="o_proj").locator("td").all_inner_texts()
        == ["+100.0 %"] * 4
    )
    assert shown.locator("#budget .stack").count() == 2
    boxes = "[...document.querySelectorAll('#icicle .cell')].map((cell) => cell.style.getPropertyValue('--tone'))"
    assert any("--worse" in tone for tone in shown.evaluate(boxes))
    assert not any("--better" in tone for tone in shown.evaluate(boxes))
    shown.locator("#colours").select_option("types")
    assert not any("--worse" in tone for tone in shown.evaluate(boxes))


def test_a_search_stands_out_and_tells_the_share_of_all_matches(shown) -> None:
    shown.locator("#search-modules").fill("mlp")
    assert shown.locator("#matches").inner_text() == "12 matches: 62.0 %, 3.67 ms"
    assert "faded" not in (cell(shown, "mlp").get_attribute("class") or "")
    assert "faded" in (cell(shown, "self_attn").get_attribute("class") or "")
    assert errors_of(shown) == []
    shown.locator("#search-modules").fill("layers.2.mlp")
    assert shown.locator("#matches").inner_text().startswith("3 matches: 15.")
    shown.locator("#search-modules").fill("nothing")
    assert shown.locator("#matches").inner_text() == "no matches"


def test_the_hierarchy_is_shown_by_time_and_from_kernels_and_types_up(shown) -> None:
    names = "[...document.querySelectorAll('#icicle [aria-level=\"6\"] .name')].map((name) => name.textContent)"
    in_order = shown.evaluate(names)
    shown.locator("#order").select_option("time")
    by_time = shown.evaluate(names)
    assert sorted(in_order) == sorted(by_time)
    assert by_time[0] == "mlp"
    shown.locator("#order").select_option(index=0)
    cells = shown.locator("#icicle [role=treeitem]")
    shown.locator("#root").select_option("kernels")
    assert cells.nth(1).inner_text().startswith("gate_up_proj_kernel")
    cells.nth(1).click()
    assert shown.locator("#card .value").inner_text().startswith("32.")
    assert [text.split()[0] for text in shown.locator("#modules-table tbody tr").all_inner_texts()] == [
        "LlamaForCausalLM.model.layers.0…3.mlp.gate_up_proj"
    ]
    assert shown.locator("#icicle").get_by_text("LlamaForCausalLM", exact=True).count() == 1
    assert errors_of(shown) == []
    shown.locator("#root").select_option("classes")
    assert cells.nth(1).get_attribute("aria-label").startswith("gate_up_proj: 1.91 ms")
    shown.locator("#fold").click()
    assert shown.locator("#root").input_value() == "classes"
    shown.locator("#root").select_option("modules")
    assert cells.first.inner_text().startswith("All GPU time")


def test_an_address_shows_the_same_again(look, llama, training) -> None:
    looking = look(page(llama))
    shown = looking.page
    shown.locator("#fold").click()
    cell(shown, "mlp").click()
    shown.locator("#search-modules").fill("down")
    shown.locator("#drawn").select_option("1")
    shown.wait_for_url("**step=*")
    address = shown.url
    again = looking.context.new_page()
    again.goto("about:blank")
    again.goto(address)
    again.wait_for_selector("[data-ready]")
    for name in ("#crumbs", "#matches", "#modules-table", "#timeline-summary"):
        assert again.locator(name).inner_text() == shown.locator(name).inner_text()
    assert not again.locator("#fold").is_checked()
    again.locator("#navigation a", has_text="Steps").click()
    again.wait_for_url("**module=*")
    assert again.url == address
    trained = look(page(training))
    trained.page.goto(f"{trained.path.as_uri()}#phase=backward&module=top")
    trained.page.locator("#card .value", has_text="91.3 % 42 ns backward").wait_for()
    trained.requests[:] = trained.requests[:1]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_axe_finds_nothing_that_keeps_somebody_out(look, llama, tiny, width: int, scheme: str) -> None:
    shown = look(page(llama, tiny), color_scheme=scheme, viewport={"width": width, "height": 900}).page
    assert errors_of(shown) == []
    shown.locator("#icicle [role=treeitem]", has_text="self_attn").first.click()
    shown.locator("#timeline summary").click()
    assert errors_of(shown) == []
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_in_a_notebooks_frame_it_is_searched_and_its_links_stay_inside(browser: Browser, llama: Dataset) -> None:
    notebook, errors = browser.new_page(), []
    notebook.on("console", lambda message: errors.append(message.text))
    notebook.on("pageerror", lambda error: errors.append(str(error)))
    notebook.set_content(llama.html()._repr_html_())
    frame = notebook.frames[1]
    frame.wait_for_selector("[data-ready]")
    frame.fill("input[type=search]", "mlp")
    frame.click("nav a >> nth=-1")
    wait_until(lambda: frame.evaluate("scrollY") > 0)
    notebook.wait_for_timeout(400)  # the link to what is shown is written with a delay
    assert "tracekit" in frame.title()
    assert errors == []
    notebook.close()


def test_numbers_read_as_in_the_terminal_but_for_ties(shown) -> None:
    rng = np.random.default_rng(6)
    times = [0, 1, 999, 1000, 12_350, 999_499, 999_500, 999_999, 10**12, 123.25, 0.5]
    times += [int(one) for one in 10 ** rng.uniform(0, 13, 500)]
    shares = [0, 1, -0.0001, -0.1234, 0.0005, 0.00049, 0.9995, 0.99951, 0.1236]
    shares += rng.uniform(0, 1, 300).tolist()
    source = (ROOT / "tracekit" / "views" / "page" / "assets" / "formatting.js").read_text("utf-8")
    call = "[values.times.map(duration), values.shares.map(percent)]"
    texts = shown.evaluate(f"(values) => {{ {source}\n return {call}; }}", {"times": times, "shares": shares})
    assert texts == [[duration(one) for one in times], [percent(one) for one in shares]]


LEFT_OUT = {
    "operators": "op 1 10 20 aten::addmm\nop 1 12 15 aten::mm\n",
    "no modules": "kernel 1 40 140 #1 gemm\n",
    "modules without work": "range 1 0 50 {'Module': 'top'}\n",
    "nothing": "",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_page_of_little_says_what_is_missing(look, tmp_path: Path, name: str) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", LEFT_OUT[name]), tmp_path / "out")
    shown = look(page(dataset)).page
    assert errors_of(shown) == []
    text = shown.locator("main").inner_text()
    assert ("CPU time" if name == "operators" else "GPU time") in text
    assert not any(word in text for word in ("null", "undefined", "NaN"))
    if name in ("nothing", "modules without work"):
        assert "No GPU work was recorded." in text
        assert "all work is attributed" not in text
        assert ("Roofline" in text) == (name != "nothing")
    else:
        assert "no module" in text


def test_a_roofline_stands_where_one_is_known(look, llama) -> None:
    from tests.views.page.test_roofline import KNOWN, UNKNOWN, data_with

    shown = look(document(data_with(llama, KNOWN))).page
    points = shown.locator("#roofline circle")
    assert points.count() == 2
    assert "62.5 TFLOP/s" in points.first.locator("title").text_content()
    assert errors_of(shown) == []
    shown.locator("#roofline tbody button").first.press("Enter")
    assert shown.locator("#crumbs li").count() > 3
    shown = look(document(data_with(llama, UNKNOWN))).page
    assert shown.locator("#roofline circle").count() == 0
    assert "--peak" in shown.locator("#roofline").inner_text()


#: The boxes of the icicle: where they are, and their colour.
BOXES = """[...document.querySelectorAll('#icicle .cell')].map((cell) => {
    const box = cell.getBoundingClientRect();
    const colour = getComputedStyle(cell).getPropertyValue('--tone');
    return { left: box.left, right: box.right, top: box.top, bottom: box.bottom, colour };
})"""


def neighbours(boxes: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for at, one in enumerate(boxes):
        for beside, other in enumerate(boxes):
            if at == beside:
                continue
            below = abs(other["top"] - one["bottom"]) < 3
            overlap = min(one["right"], other["right"]) - max(one["left"], other["left"])
            if (below and overlap > 1) or (other["top"] == one["top"] and abs(other["left"] - one["right"]) < 3):
                yield at, beside


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_boxes_of_the_icicle_that_touch_can_be_told_apart(look, llama, scheme: str) -> None:
    boxes = look(page(llama), color_scheme=scheme).page.evaluate(BOXES)
    apart = least_differences(box["colour"] for box in boxes)
    pairs = list(neighbours(boxes))
    assert len(pairs) >= len(boxes)
    assert min(apart[pair] for pair in pairs) >= PLAIN


def test_one_phase_of_a_training_is_shown_in_all_parts(look, training) -> None:
    shown = look(page(training)).page
    assert shown.locator(".phases label").all_inner_texts() == [
        "all phases",
        *["forward", "backward", "recompute", "optimizer", "other"],
    ]
    rows, kernels = shown.locator("#modules-table tbody tr"), shown.locator("#kernels-table tbody tr")
    assert "78 ns" in rows.first.inner_text()
    shown.locator(".phases label", has_text="backward").click()
    assert [text.strip() for text in rows.locator("td:nth-child(2)").all_inner_texts()] == ["42 ns", "0 ns"]
    assert {row.split()[0] for row in kernels.all_inner_texts()} == {"gemm_backward", "add"}
    assert shown.locator("#card .value").inner_text() == "100.0 % 46 ns backward"
    assert "median" not in shown.locator("#modules-table thead").inner_text()
    cell(shown, "top").click()
    assert shown.locator("#card .value").inner_text() == "91.3 % 42 ns backward"
    shown.locator(".phases label", has_text="optimizer").click()
    assert shown.locator("#card .value").inner_text() == "14.3 % 5 ns optimizer"
    shown.locator(".phases label", has_text="other").click()
    assert not shown.locator("#types").is_visible()
    shown.locator(".phases label", has_text="all phases").click()
    assert shown.locator("#types").is_visible()
    assert shown.locator("#card .value").inner_text() == "65.9 % 81 ns"
    assert shown.locator("#card .facts").first.inner_text().startswith(" forward\n23 ns (28.4 %)")


def test_a_hierarchy_of_plain_ranges_is_shown_in_its_own_words(look, tmp_path) -> None:
    name = 'train "v1.5"; <b>a/b</b>: x->y * größe'
    lines = f"""
        range  1   0 900 {name}
        range  1  10  90 layer_0
        launch 1  30  40 #1
        kernel 1 100 150 #1 gemm
        range  1 100 190 layer_1
        launch 1 120 130 #2
        kernel 1 160 200 #2 gemm
        launch 1 920 930 #3
        kernel 1 940 950 #3 copy
    """
    shown = look(page(tracekit.parse(report(tmp_path / "plain.sqlite", lines)))).page
    assert (
        shown.locator("#why").inner_text().startswith("This report has no module markers, so the rows are NVTX ranges.")
    )
    assert shown.locator("#modules h2").inner_text() == "Ranges"
    cell(shown, "layer_0 … 1").click()
    assert shown.locator("#card h3").inner_text().startswith(f"{name}.layer_0…1")
    text = shown.locator("body").inner_text()
    assert "no range" in text
    assert "3 ranges" in text
    assert "module" not in text.replace("no module markers", "").replace("to see modules", "").lower()
