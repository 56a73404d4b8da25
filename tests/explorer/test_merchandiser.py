"""The explorer for somebody whose ids say nothing: names, the page of a bundle, undo, the knob, what
happened; with the default model, on a phone, and in German; in real Chromium."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("selenium", reason="the explorer is tested with selenium, which is not installed")

from chromium import Served, browsing, missing_programs, serving, set_screen
from explorer_page import Page
from named_shop import train_named_shop
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"not installed: {' and '.join(missing_programs())}"
)
PERSON = "Ada 1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_named_shop(tmp_path_factory.mktemp("named"), epochs=2, choose="fixed")


@pytest.fixture(scope="module")
def service(run: Path) -> Iterator[Served]:
    with serving(run, run.parent / "state") as served:
        yield served


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(chrome: Chrome, service: Served) -> Iterator[Page]:
    set_screen(chrome, 1280, 900)
    found = Page(chrome, service.url)
    found.complaints()  # of earlier pages
    yield found
    assert found.complaints() == []


def described(service: Served, *bundles: str) -> dict[str, dict[str, Any]]:
    found: Any = service.post("/v1/descriptions", {"bundle_ids": list(bundles)})
    bundles_found: dict[str, dict[str, Any]] = found["bundles"]
    return bundles_found


def test_titles_pictures_categories_and_prices_stand_where_ids_did(page: Page, service: Served) -> None:
    page.show_list_of(PERSON)
    rows: Any = service.ask(f"/v1/recommendations/{quote(PERSON)}?k=10")
    ids = [row["bundle_id"] for row in rows["recommendations"]]
    fields = described(service, *ids)
    assert page.texts("#list .card h3") == [fields[name]["title"] for name in ids]
    for text, name in zip(page.texts("#list .card .remarks"), ids, strict=True):
        assert text == f"{name} · {fields[name]['category']} · {fields[name]['price']:.2f}"
    assert len(page.all("#list .card .picture")) == len(ids)
    reasons = " ".join(page.texts("#list .reason"))
    assert not re.search(r"[BI]-\d{4}", reasons), "reasons speak of titles"


def test_a_title_that_several_items_have_is_said_once(page: Page, service: Served) -> None:
    rows: Any = service.ask(f"/v1/recommendations/{quote(PERSON)}?k=1")
    bundle = rows["recommendations"][0]["bundle_id"]
    known: Any = service.ask(f"/v1/bundles/{bundle}")
    items = known["item_ids"]
    before: Any = service.post("/v1/descriptions", {"item_ids": items})
    titles = [before["items"][item]["title"] for item in items]
    try:
        for item in items:
            service.post(f"/v1/items/{quote(item)}", {"title": "Salt"}, "PATCH")
        page.open(f"#/bundles/{quote(bundle)}")
        page.wait_for_text("#bundle-items", f"Salt \u00d7 {len(items)}")
        assert len(page.all("#bundle-items .chip")) == 1
        page.show_list_of(PERSON)
        assert page.texts("#list .card .reason")[0].count("Salt") <= 2  # inside, and what they have
        inside = [chip.text for chip in page.one("#list .card").find_elements(By.CSS_SELECTOR, ".chip")]
        assert len(inside) <= 2, "those that they have, and the others"
        assert all(text.startswith("Salt") for text in inside)
    finally:
        for item, title in zip(items, titles, strict=True):
            service.post(f"/v1/items/{quote(item)}", {"title": title}, "PATCH")


def test_filters_are_there_where_the_service_can_filter(page: Page, service: Served) -> None:
    document: Any = service.ask("/openapi.json")
    can = "where" in document["components"]["schemas"]["Question"]["properties"]
    page.show_list_of(PERSON)
    if not can:
        assert not page.one("#category-filter").is_displayed()
        return
    page.until(lambda: page.one("#category-filter").is_displayed(), "the filter")
    Select(page.one("#filter-category")).select_by_visible_text("garden")
    page.until(
        lambda: (
            page.texts("#list .remarks") and all("garden" in text for text in page.texts("#list .remarks"))
        ),
        "bundles for the garden only",
    )
    page.one("#filter-price").send_keys("40", Keys.TAB)
    page.until(
        lambda: all(float(text.split(" · ")[2]) <= 40 for text in page.texts("#list .remarks")), "cheap ones"
    )
    assert page.all("#list .card")


def test_a_bundle_is_found_by_its_title_and_has_a_page(page: Page, service: Served) -> None:
    page.open("#/bundles")
    page.wait_for_text("#bundle-content", "Some of the bundles")
    page.search("bundle", "tomato", "Tomato summer")
    page.wait_for_text("#bundle-name-shown", "Tomato summer")
    bundle = str(page.one(".bundle-page").get_attribute("data-bundle"))
    known: Any = service.ask(f"/v1/bundles/{bundle}")
    titles: Any = service.post("/v1/descriptions", {"item_ids": known["item_ids"]})
    assert page.texts("#bundle-items .chip") == [titles["items"][item]["title"] for item in known["item_ids"]]

    # Those that are alike are links to their own pages.
    first = page.one(".rows a[href^='#/bundles/']")
    wanted = first.text
    first.click()
    page.wait_for_text("#bundle-name-shown", re.escape(wanted))


def test_the_page_of_a_bundle_says_how_it_stands_and_what_would_lift_it(page: Page, service: Served) -> None:
    names = [f"B-{number:04d}" for number in range(48)]
    standing: dict[str, Any] = {name: service.ask(f"/v1/bundles/{name}/standing") for name in names}
    name, stands = next((name, one) for name, one in standing.items() if one["rises_at"] is not None)
    page.open(f"#/bundles/{name}")
    page.until(lambda: page.all(".dot"), "the curve")
    assert f" {stands['in_lists']} list" in page.texts("#standing")[0]
    assert f"With {stands['rises_at']} taker" in page.texts("#standing")[0]
    assert page.texts("#takers a") == stands["takers"]
    script = "return [...document.querySelectorAll('.dot')].map(d => [d.dataset.taken, d.dataset.lists])"
    drawn = [[int(number) for number in pair] for pair in page.browser.execute_script(script)]
    assert drawn == [[step["taken"], step["in_lists"]] for step in stands["steps"]]
    now = page.one(".dot.now")
    assert int(str(now.get_attribute("data-taken"))) == stands["popularity"]

    # Of what stands in all lists it was said that its takers do not count at all.
    try:
        for other in names[20:]:
            service.post(f"/v1/bundles/{other}", {"available": False}, "PATCH")
        page.open(f"#/bundles/{names[0]}")
        page.wait_for_text("#standing", "nowhere to rise")
    finally:
        for other in names[20:]:
            service.post(f"/v1/bundles/{other}", {"available": None}, "PATCH")


def test_the_audience_is_downloaded_as_csv(page: Page, service: Served, tmp_path: Path) -> None:
    page.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.open("#/bundles/B-0003")
    page.until(lambda: page.all("#download"), "the button")
    page.one("#download").click()
    page.wait_for_text("#downloaded", "audience-B-0003.csv")
    file = tmp_path / "audience-B-0003.csv"
    page.until(file.exists, "the file")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    known: Any = service.ask("/v1/bundles/B-0003/audience?k=1000")
    assert [row["user_id"] for row in rows] == [row["user_id"] for row in known["audience"]]
    assert len(rows) > 100
    assert [float(row["score"]) for row in rows] == pytest.approx([row["score"] for row in known["audience"]])


def test_they_took_it_can_be_taken_back_and_both_are_told(page: Page, service: Served) -> None:
    page.show_list_of(PERSON)
    first = page.texts("#list .card h3")[0]
    bundle = str(page.all("#list .card")[0].get_attribute("data-bundle"))
    before: Any = service.ask(f"/v1/bundles/{bundle}")
    page.all("#list .card-foot button")[0].click()
    page.wait_for_text("#list-message", "Recorded")
    page.until(lambda: first in page.texts("#belongings .chip"), "it among theirs")
    taken: Any = service.ask(f"/v1/bundles/{bundle}")
    assert taken["popularity"] == before["popularity"] + 1
    page.one("#undo").click()
    page.wait_for_text("#list-message", "Taken back")
    assert page.texts("#list .card h3")[0] == first
    assert first not in page.texts("#belongings .chip")
    after: Any = service.ask(f"/v1/bundles/{bundle}")
    assert after == before

    page.open("#/happened")
    page.wait_for_text(".event", "was loaded")
    events = page.texts(".event span")
    assert any(f"recorded of {first} was taken back" in text for text in events)
    assert any(f"took or saw {first}" in text for text in events)
    assert str(page.one(".event a").get_attribute("href")).endswith(bundle)


def test_rows_recorded_at_once_are_told_by_number(page: Page, service: Served) -> None:
    rows: Any = service.ask(f"/v1/recommendations/{quote(PERSON)}?k=3")
    shown = [
        {"user_id": PERSON, "bundle_id": row["bundle_id"], "kind": "shown"} for row in rows["recommendations"]
    ]
    service.post("/v1/interactions", {"interactions": shown})
    page.open("#/happened")
    page.wait_for_text(".event", "3 interactions were recorded.")
    assert not any("rows" in text for text in page.texts(".event a"))


def test_what_was_said_of_an_item_is_told_by_its_title(page: Page, service: Served) -> None:
    """It was told of the item "undefined", and the log had the item's id in the place of a bundle's."""
    known: Any = service.ask("/v1/bundles/B-0003")
    item = known["item_ids"][0]
    said: Any = service.post(f"/v1/items/{item}", {"brand": "Alpine"}, "PATCH")
    page.open("#/happened")
    page.wait_for_text(".event", f"Columns of the item {said['columns']['title']} were set.")
    told: Any = service.ask("/v1/happened?limit=1")
    assert told["events"][0]["kind"] == "columns of item"
    assert told["events"][0]["item_id"] == item
    assert "bundle_id" not in told["events"][0]


@pytest.mark.parametrize(
    ("history", "of_items", "share", "weight", "says", "names_items"),
    [
        (0.1, 0.2, 0.9, 0.5, True, True),
        (0.1, -0.2, 0.9, 0.5, True, False),  # "Inside, lamp fits best" would be untrue
        (0.1, 1.0, 0.9, 0.5, False, True),
        (1.0, 0.2, 0.9, 0.5, False, True),
        (-0.1, -0.2, -0.1, 0.5, False, False),
        (0.1, 0.2, 0.9, -0.5, False, True),  # less than the usual, of an old bundle
    ],
)
def test_a_bundle_that_is_expected_to_be_popular_says_so(
    page: Page, history: float, of_items: float, share: float, weight: float, says: bool, names_items: bool
) -> None:
    """Where that is most of a score, no item inside is given as the only reason."""
    page.open()
    page.until(lambda: page.all("#people-title"), "the page")
    terms = [
        {"name": "history", "about": "history", "weight": 1, "share": history},
        {"name": "affiliation", "about": "items", "weight": 1, "share": of_items},
        {"name": "prospects", "about": "items", "weight": weight, "share": share},
    ]
    why = {
        "history": history, "items": of_items + share, "youth": 0, "history_weight": None, "terms": terms,
        "bundle_items": [{"item_id": "lamp", "share": 1}], "user_items": [], "user_bundles": [],
    }  # fmt: skip
    script = """const [why, done] = arguments, contents = {popularity: 3, is_new: false};
        import("/reasons.js").then((m) => done(m.reason(why, contents)), (e) => done(String(e)))"""
    said = page.browser.execute_async_script(script, why)
    assert said.startswith("Taken 3 times")
    assert ("are taken more often than others" in said) == says, said
    assert ("lamp" in said) == names_items, said


def test_models_side_by_side_fit_on_a_phone(run: Path, tmp_path: Path) -> None:
    """In German the table was wider than the screen, and the page with it."""
    runs = ["--run", f"a={run}", "--run", f"b={run}", "--share", "a=0.9"]
    with serving(runs, tmp_path / "state") as served, browsing(language="de-DE") as browser:
        set_screen(browser, 390, 844)
        users: Any = served.ask("/v1/users?limit=40")
        for user in users["users"]:
            found: Any = served.ask(f"/v1/recommendations/{quote(user['user_id'])}?k=1")
            about = {"user_id": user["user_id"], "recommendation_id": found["recommendation_id"]}
            served.post(
                "/v1/interactions",
                about | {"bundle_id": found["recommendations"][0]["bundle_id"], "kind": "shown"},
            )
        page = Page(browser, served.url)
        page.open("#/happened")
        page.until(lambda: page.all(".sides td"), "the table")
        assert page.texts(".sides tbody td:nth-child(-n+2)") == ["a", "90\u00a0%", "b", "10\u00a0%"]
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_the_default_model_says_what_its_scores_are_made_of(page: Page, service: Served) -> None:
    page.open("#/model")
    page.until(lambda: len(page.all("#model-content figure")) == 4, "four figures")
    parts: Any = service.ask("/v1/parts")
    figure = page.all("#model-content figure")[1]
    script = "return [...arguments[0].querySelectorAll('.column')].map(c => Number(c.dataset.share))"
    wanted = [part[name] for part in parts["parts"] for name in ("history", "items", "youth")]
    assert page.browser.execute_script(script, figure) == pytest.approx(wanted)
    assert all(
        sum(part[n] for n in ("history", "items", "youth")) == pytest.approx(1) for part in parts["parts"]
    )
    assert "What scores in lists are made of" in figure.text


def test_the_knob_is_a_slider_that_tells_what_it_would_change(page: Page, service: Served) -> None:
    page.open("#/model")
    page.until(lambda: page.all("#knob-welcome"), "the slider")
    page.wait_for_text(".knob-says", "0 of")
    slider = page.one("#knob-welcome")
    slider.send_keys(Keys.END)
    page.wait_for_text(".knob-says", "At 100")
    most: Any = service.ask("/v1/knobs/welcome?value=100")
    assert most["cold_share"] >= most["cold_share_now"]
    assert f"{most['changed_lists']} of {most['sampled_users']} lists" in page.texts(".knob-says")[0]
    slider.send_keys(Keys.HOME)
    page.wait_for_text(".knob-says", "At 0, 0%")
    least: Any = service.ask("/v1/knobs/welcome?value=0")
    assert least["cold_share"] == 0 < least["cold_share_now"]
    assert least["changed_lists"] > 0
    again: Any = service.ask(f"/v1/recommendations/{quote(PERSON)}?k=20")
    assert any(row["is_new"] for row in again["recommendations"]), "looking changes nothing"
    page.one("#set-welcome").click()
    page.wait_for_text(".knob-says", "It stands at 0.")
    try:
        hidden: Any = service.ask(f"/v1/recommendations/{quote(PERSON)}?k=20")
        assert not any(row["is_new"] for row in hidden["recommendations"])
        assert not page.one("#set-welcome").is_enabled(), "it stands there already"
        page.open("#/happened")
        page.wait_for_text("#happened-content", "How strongly new bundles are welcome: now 0.")
    finally:
        service.post("/v1/knobs/welcome", {"value": None}, "PATCH")


def test_on_a_phone_the_list_begins_above_the_fold(page: Page) -> None:
    set_screen(page.browser, 390, 844)
    page.show_list_of(PERSON)
    top = page.browser.execute_script(
        "return document.querySelector('#list .card').getBoundingClientRect().top"
    )
    assert top < 560
    below = "return document.querySelector('#belongings-panel').getBoundingClientRect().top"
    assert page.browser.execute_script(below) > top
    assert page.browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_language_is_that_of_the_browser(service: Served) -> None:
    with browsing(language="de-AT") as browser:
        page = Page(browser, service.url)
        page.open("#/people")
        page.wait_for_text("#people-title", "Was würde diese Person nehmen")
        page.show_list_of(PERSON)
        assert page.texts("#list-title") == [f"Empfohlen für {PERSON}"]
        assert browser.execute_script("return document.documentElement.lang") == "de"
        for view in ("bundles/B-0003", "compose", "model", "happened"):
            page.open(f"#/{view}")
            page.until(lambda: not page.all(".skeleton, [aria-busy]"), "all of it")
            time.sleep(0.3)
            text = browser.find_element(By.TAG_NAME, "main").text
            for title in page.texts("main a"):  # what bundles are called is the shop's business
                text = text.replace(title, "")
            assert not re.search(r"\b(the|bundles|taken|people|would)\b", text), text
        assert page.complaints() == []


def test_every_sentence_that_a_script_names_is_there_in_both_languages() -> None:
    import coheat.service

    web = Path(coheat.service.__file__).parent / "web"
    english, german = (json.loads((web / f"sentences.{tag}.json").read_text()) for tag in ("en", "de"))
    assert list(english) == list(german)
    places = {key: set(re.findall(r"\{(\w+)\}", text)) for key, text in english.items()}
    assert places == {key: set(re.findall(r"\{(\w+)\}", text)) for key, text in german.items()}
    scripts = "\n".join(path.read_text() for path in [*web.glob("*.js"), web / "index.html"])
    named = set(re.findall(r"[\"'`]((?:[a-z]+)\.[a-zA-Z.]+)[\"'`]", scripts))
    stems = {key.removesuffix(".one").removesuffix(".other") for key in english}
    sections = {key.split(".")[0] for key in english}
    unknown = {name for name in named if name.split(".")[0] in sections and name not in stems}
    assert not {name for name in unknown if not name.endswith((".js", ".json"))}
    used = {stem for stem in stems if re.search(re.escape(stem), scripts)}
    spelled = ("happened.", "knob.", "number.", "more", "none", "again")
    assert not {stem for stem in stems - used if not stem.startswith(spelled)}, "sentences that nobody says"
    assert all(text.strip() for text in german.values())
    same = {key for key, text in english.items() if text == german[key] and re.search("[a-z]{4}", text)}
    assert same <= {"page.title"}
