"""The explorer in real Chromium, through real clicks and keys, on a real `coheat serve`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables
from coheat.ids import Vocabulary
from coheat.runs import train_run
from coheat.service.keys import KeyRing

pytest.importorskip("selenium", reason="the explorer is tested with selenium, which is not installed")

from chromium import Served, browsing, missing_programs, serving, set_screen
from explorer_page import Page
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

pytestmark = pytest.mark.skipif(
    bool(missing_programs()), reason=f"not installed: {' and '.join(missing_programs())}"
)

EVIL = '<img src=x onerror="window.hacked=1">'
ODD_ITEM = f"{EVIL} & \"quoted\" 'too' 🧺 a/b?c#d%25"
ODD_USER = f"{EVIL} user/🦊 'x'?y#z%2F"
ODD_BUNDLE = f'{EVIL}</li><script>window.hacked=2</script> "b" / 🎁'


def renamed(vocabulary: Vocabulary, old: str, new: str) -> Vocabulary:
    return Vocabulary((new if name == old else name for name in vocabulary.ids), vocabulary.kind)


def odd_world() -> Split:
    """The planted world, where an item and a user of group 0 have ids that try to be markup."""
    planted = planted_world()
    train = dataclasses.replace(
        planted.train,
        users=renamed(planted.train.users, "user-0-0", ODD_USER),
        items=renamed(planted.train.items, "item-0-0", ODD_ITEM),
    )
    return dataclasses.replace(planted, train=train)


@pytest.fixture(scope="session")
def explored_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("explorer")
    write_tables(odd_world(), place / "data")
    settings = {
        "epochs": 40, "evaluate_every": 40, "batch_size": 64, "learning_rate": 0.02, "max_temperature": 20.0,
    }  # fmt: skip
    train_run(place / "data", place / "run", "coheat", overrides=settings)
    return place / "run"


@pytest.fixture(scope="session")
def service(explored_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(explored_run, tmp_path_factory.mktemp("state")) as served:
        yield served


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(chrome: Chrome, service: Served) -> Iterator[Page]:
    set_screen(chrome, 1280, 900)
    found = Page(chrome, service.url)
    found.open()
    chrome.execute_script("localStorage.clear(); sessionStorage.clear()")
    found.complaints()  # of earlier pages
    found.open()
    yield found
    assert found.complaints() == []


def recommended(service: Served, user: str, **parameters: Any) -> list[dict[str, Any]]:
    asked = "&".join(f"{name}={value}" for name, value in parameters.items())
    answer: Any = service.ask(f"/v1/recommendations/{quote(user, safe='')}?{asked}")
    found: list[dict[str, Any]] = answer["recommendations"]
    return found


def test_choose_a_person_and_see_what_they_have(page: Page, service: Served) -> None:
    page.wait_for_text("#list", "Choose a person")
    page.search("user", "user-1-3", "user-1-3")
    page.wait_for_list()
    known: Any = service.ask("/v1/users/user-1-3")
    assert page.texts("#belongings h3") == [
        f"{len(known['item_ids'])} items",
        f"{len(known['bundle_ids'])} bundles",
    ]
    assert page.texts("#belongings .chip") == known["item_ids"] + known["bundle_ids"]
    assert page.one("#list-title").text == "Recommended to user-1-3"
    # The planted answer: whom the group's bundles suit, they come first.
    held = set(known["bundle_ids"])
    rest = {f"bundle-1-{n}" for n in range(6)} - held
    assert set(page.texts("#list .card h3")[: len(rest)]) == rest


def test_bars_and_marks_are_those_of_the_service(page: Page, service: Served) -> None:
    page.show_list_of("user-2-5")
    rows = recommended(service, "user-2-5", k=10)
    assert page.texts("#list .card h3") == [row["bundle_id"] for row in rows]
    cards = page.all("#list .card")
    for card, row in zip(cards, rows, strict=True):
        why: Any = service.ask(f"/v1/explanations?user_id=user-2-5&bundle_id={row['bundle_id']}")
        bars = {bar.get_attribute("class"): bar for bar in card.find_elements(By.CLASS_NAME, "bar")}
        for kind, name in (("bar history", "history"), ("bar items", "items")):
            assert float(str(bars[kind].get_attribute("data-value"))) == pytest.approx(why[name])
        assert bool(card.find_elements(By.CLASS_NAME, "badge")) == row["is_new"]
        contents: Any = service.ask(f"/v1/bundles/{row['bundle_id']}")
        shown = [chip.text for chip in card.find_elements(By.CSS_SELECTOR, ".contents .chip")]
        assert [text.removesuffix("\n(has it)") for text in shown] == contents["item_ids"]
        reason = card.find_element(By.CLASS_NAME, "reason").text
        taken = contents["popularity"]
        beginning = f"Taken {taken} time" if taken else "Nobody has taken it yet"
        assert reason.startswith(beginning)
    # The bars of one list share a scale: lengths stand to each other as the numbers do.
    script = """return [...document.querySelectorAll('#list .bar')].map(bar => [
        Math.abs(Number(bar.dataset.value)), bar.querySelector('.bar-fill').getBoundingClientRect().width])"""
    measured = page.browser.execute_script(script)
    value, width = max(measured)
    assert width > 100
    for other_value, other_width in measured:
        assert other_width == pytest.approx(width * other_value / value, abs=1.0)


def test_new_only_and_length_of_the_list(page: Page, service: Served) -> None:
    page.show_list_of("user-0-3")
    page.one("input[value=new] + span").click()
    wanted = [row["bundle_id"] for row in recommended(service, "user-0-3", k=10, candidates="new")]
    page.until(lambda: page.texts("#list .card h3") == wanted, "new bundles only")
    assert len(page.texts("#list .badge")) == len(wanted) > 1
    Select(page.one("#list-length")).select_by_visible_text("5")
    page.until(lambda: page.texts("#list .card h3") == wanted[:5], "five bundles")


def test_compose_preview_publish_and_watch_it_enter(page: Page, service: Served) -> None:
    page.compose(["item-3-0"], "")
    page.search("item", "item-3-1", "item-3-1")
    page.until(lambda: page.texts("#basket .chip span") == ["item-3-0", "item-3-1"], "both items")
    page.until(lambda: len(page.all("#audience .rows li")) == 8, "an audience")
    assert all(name.startswith("user-3-") for name in page.texts("#audience .row-name"))
    page.until(
        lambda: (
            page.texts("#similar .row-name") and page.texts("#similar .row-name")[0].startswith("bundle-3-")
        ),
        "the bundles of the same group",
    )
    page.one("#publish").click()
    assert page.wait_for_text("#compose-problem", "name") == "Give the bundle a name first."
    page.one("#bundle-name").send_keys("picnic")
    page.one("#publish").click()
    page.wait_for_text("#published", "picnic is published")
    page.wait_for_text("#published .place", r"place \d+")
    first = page.texts("#published .row-name")[0]
    place = int(page.texts("#published .place")[0].removeprefix("place "))
    page.all("#published .row-name")[0].click()
    page.wait_for_text("#list-title", re.escape(first))
    page.wait_for_list()
    assert page.texts("#list .card h3")[place - 1] == "picnic"
    card = page.one("#list .card[data-bundle=picnic]")
    assert "fresh" in str(card.get_attribute("class"))
    assert card.find_element(By.CLASS_NAME, "badge").text == "New"
    assert {row["bundle_id"]: row["rank"] for row in recommended(service, first, k=10)}["picnic"] == place

    # They take it: it leaves their list.
    card.find_element(By.TAG_NAME, "button").click()
    page.wait_for_text("#list-message", "Recorded")
    page.until(lambda: "picnic" not in page.texts("#list .card h3"), "the bundle to leave the list")
    assert "picnic" in page.texts("#belongings .chip")
    taken: Any = service.ask("/v1/bundles/picnic")
    assert taken["popularity"] == 1


def test_a_taken_name_is_a_sentence_and_a_bundle_can_be_withdrawn(page: Page, service: Served) -> None:
    page.compose(["item-2-0"], "bundle-2-0")
    page.one("#publish").click()
    assert "bundle-2-0" in page.wait_for_text("#compose-problem", r"^[A-Z].*\.$")
    page.one("#bundle-name").send_keys(" again")
    page.one("#publish").click()
    page.wait_for_text("#published", "bundle-2-0 again is published")
    page.one("#published button").click()
    page.wait_for_text("#published", "withdrawn")
    found: Any = service.ask("/v1/bundles?query=again")
    assert found["bundles"] == []


def test_everything_by_keyboard(page: Page) -> None:
    body = page.one("body")
    body.send_keys(Keys.TAB)
    assert page.browser.switch_to.active_element.text == "Skip to the content"
    for _ in range(30):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        if page.browser.switch_to.active_element.get_attribute("id") == "user-search":
            break
    focused = page.browser.switch_to.active_element
    assert focused.get_attribute("id") == "user-search"
    outline = focused.value_of_css_property("outline-style")
    assert outline == "solid"
    focused.send_keys("user-1")
    page.until(lambda: len(page.texts("#user-options .option-name")) > 1, "people")
    second = page.texts("#user-options .option-name")[1]
    focused.send_keys(Keys.ARROW_DOWN)
    page.until(lambda: focused.get_attribute("aria-activedescendant") == "user-options-1", "the second entry")
    focused.send_keys(Keys.ESCAPE)
    assert focused.get_attribute("aria-expanded") == "false"
    assert focused.get_attribute("value") == "user-1"
    focused.send_keys(Keys.ESCAPE)
    assert focused.get_attribute("value") == ""
    focused.send_keys(second, Keys.ENTER)
    page.wait_for_text("#list-title", second)
    page.wait_for_list()
    assert re.search(r"\d+ bundles recommended to", page.wait_for_text("#announcements", "recommended"))

    page.open("#/compose")
    box = page.one("#item-search")
    box.send_keys("item-1-1", Keys.ENTER)
    page.until(lambda: page.texts("#basket .chip span") == ["item-1-1"], "the item")
    box.send_keys(Keys.TAB)
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: not page.texts("#basket .chip span"), "the item to go")
    box.send_keys("item-1-2", Keys.ENTER)
    page.until(lambda: page.texts("#basket .chip span") == ["item-1-2"], "the other item")
    page.one("#bundle-name").send_keys("by keyboard", Keys.ENTER)
    page.wait_for_text("#published", "by keyboard is published")


def test_dark_and_light(page: Page) -> None:
    def ground() -> int:
        colour = page.one("body").value_of_css_property("background-color")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert ground() > 600
    set_screen(page.browser, 1280, 900, dark=True)
    page.until(lambda: ground() < 150, "dark colours")
    page.one("#theme-button").click()
    page.until(lambda: ground() > 600, "light colours by choice")
    page.open()
    assert ground() > 600, "the choice outlives the page"
    page.one("#theme-button").click()
    page.until(lambda: ground() < 150, "dark colours by choice")


def test_a_narrow_screen_needs_no_sideways_scrolling(page: Page) -> None:
    set_screen(page.browser, 360, 740)
    script = "return document.documentElement.scrollWidth"
    for place in ("#/people/user-0-1", "#/bundles/bundle-0-1", "#/compose", "#/model", "#/happened"):
        page.open(place)
        page.until(lambda: not page.all(".skeleton"), "what is loading")
        assert page.browser.execute_script(script) <= 360, place


def test_ids_are_shown_as_they_are_and_never_run(page: Page) -> None:
    page.search("user", "<img", ODD_USER)
    page.wait_for_text("#list-title", "Recommended to")
    page.wait_for_list()
    assert page.texts("#list-title") == [f"Recommended to {ODD_USER}"]
    assert ODD_ITEM in page.texts("#belongings .chip")
    page.compose([ODD_ITEM, "item-0-1"], ODD_BUNDLE)
    assert page.texts("#basket .chip span") == [ODD_ITEM, "item-0-1"]
    page.until(lambda: len(page.all("#audience .rows li")) == 8, "an audience")
    page.one("#publish").click()
    page.wait_for_text("#published .place", r"place \d+")
    page.show_list_of(ODD_USER)
    assert ODD_BUNDLE in page.texts("#list .card h3")
    assert any(ODD_ITEM in text for text in page.texts("#list .contents .chip"))
    assert any(ODD_ITEM in text for text in page.texts("#list .reason"))
    page.one(
        f"#list .card[data-bundle={json.dumps(ODD_BUNDLE, ensure_ascii=False)}] .card-foot button"
    ).click()
    page.wait_for_text("#list-message", "Recorded")
    page.until(lambda: ODD_BUNDLE in page.texts("#belongings .chip"), "the odd bundle among theirs")
    assert page.all("main img, main script") == []
    assert page.hacked() is None


def test_the_panel_of_the_model(page: Page, service: Served) -> None:
    page.one(".views a[data-view=model]").click()
    page.until(lambda: len(page.all("#model-content figure")) == 3, "three figures")
    known: Any = service.ask("/v1/statistics")
    assert page.texts(".tile dd") == [
        f"{known[name]:,}" for name in ("n_users", "n_items", "n_bundles", "n_cold_bundles", "n_interactions")
    ]
    script = "return [...arguments[0].querySelectorAll('.column')].map(c => Number(c.dataset.share))"
    skew, trust, _ = page.all("#model-content figure")
    bins = [row for row in known["popularity"] if row["bundles"] > 0]
    drawn = page.browser.execute_script(script, skew)
    assert drawn[::2] == pytest.approx([row["bundles"] / known["n_bundles"] for row in bins])
    assert drawn[1::2] == pytest.approx([row["interactions"] / known["n_interactions"] for row in bins])
    drawn = page.browser.execute_script(script, trust)
    assert drawn == pytest.approx([row["mean_history_weight"] for row in bins])
    assert drawn[0] == 0
    assert drawn[-1] > 0


def test_an_unknown_person_is_a_sentence(page: Page) -> None:
    page.open("#/people/nobody")
    assert "nobody" in page.wait_for_text("#belongings .trouble p", r"^Unknown user.*\.$")


def test_a_key_is_asked_for_and_a_dead_service_is_a_sentence(
    chrome: Chrome, explored_run: Path, tmp_path: Path
) -> None:
    ring = KeyRing(tmp_path / "state" / "keys.json")
    (tmp_path / "state").mkdir()
    reading, writing = ring.create("reader", "read"), ring.create("writer", "write")
    with serving(explored_run, tmp_path / "state") as served:
        page = Page(chrome, served.url)
        page.open("#/people/user-0-1")
        page.until(lambda: page.all("dialog[open]"), "the prompt")
        page.one("#key-input").send_keys("wrong", Keys.ENTER)
        page.wait_for_text("#key-reason", "not accepted")
        page.one("#key-input").send_keys(reading, Keys.ENTER)
        page.wait_for_list()
        assert not page.all("dialog[open]")
        kept = "return [sessionStorage, localStorage].map(s => JSON.stringify({...s}).includes(arguments[0]))"
        assert chrome.execute_script(kept, reading) == [True, False]

        page.compose(["item-0-1"], "with a key")
        page.one("#publish").click()
        page.wait_for_text("#compose-problem", "may not")
        page.one("#key-button").click()
        page.one("#key-input").send_keys(writing, Keys.ENTER)
        page.until(lambda: not page.all("dialog[open]"), "the prompt to close")
        page.one("#publish").click()
        page.wait_for_text("#published", "with a key is published")
        page.show_list_of("user-0-1")
        served.process.terminate()
        served.process.wait(timeout=240)
        page.one("input[value=new] + span").click()
        page.wait_for_text("#list .trouble", "The service does not answer")
    assert [message for message in page.complaints() if "ERR_CONNECTION_REFUSED" not in message] == []


def test_a_model_that_cannot_explain_itself_still_shows_lists(
    chrome: Chrome, explored_run: Path, tmp_path: Path
) -> None:
    train_run(explored_run.parent / "data", tmp_path / "run", "dam", overrides={"epochs": 1})
    with serving(tmp_path / "run", tmp_path / "state") as served:
        page = Page(chrome, served.url)
        page.show_list_of("user-0-1")
        assert "one score for everything it knows" in page.texts("#list .card .reason")[0]
        bars = page.texts("#list .card .bars")
        assert "Score" in bars[0]
        assert "History" not in bars[0]
        page.compose(["item-0-1"], "picnic")
        page.wait_for_text("#audience", "without vectors")


def test_a_model_that_counts_items_is_drawn_by_them_alone(
    chrome: Chrome, explored_run: Path, tmp_path: Path
) -> None:
    train_run(explored_run.parent / "data", tmp_path / "run", "counting", overrides={"epochs": 1})
    with serving(tmp_path / "run", tmp_path / "state") as served:
        page = Page(chrome, served.url)
        page.show_list_of("user-0-1")
        assert "goes by items alone" in page.texts("#list .card .reason")[0]
        bars = page.texts("#list .card .bars")
        assert "Items" in bars[0]
        assert "History" not in bars[0]
        assert not page.one("#youth-legend").is_displayed()
        page.compose(["item-0-1"], "picnic")
        page.wait_for_text("#audience", "user-0-")


def test_a_score_of_history_items_and_youth_has_a_bar_for_each(
    chrome: Chrome, explored_run: Path, tmp_path: Path
) -> None:
    settings = {"epochs": 2, "evaluate_every": 2, "embedding_size": 8, "companion_size": 8, "choose": "fixed"}
    train_run(explored_run.parent / "data", tmp_path / "run", "ember", overrides=settings)
    with serving(tmp_path / "run", tmp_path / "state") as served:
        page = Page(chrome, served.url)
        page.compose(["item-0-1", "item-0-2"], "picnic")
        page.wait_for_text("#audience", "user-0-")
        page.one("#publish").click()
        page.wait_for_text("#published", "picnic is published")
        page.show_list_of("user-0-1")
        rows = recommended(served, "user-0-1", k=50)
        assert "picnic" in {row["bundle_id"] for row in rows}
        Select(page.one("#list-length")).select_by_visible_text("50")
        names = [row["bundle_id"] for row in rows]
        page.until(lambda: page.texts("#list .card h3") == names, "all bundles")
        script = """return [...document.querySelectorAll('#list .card')].map(card => [
            [...card.querySelectorAll('.bar')].map(bar => Number(bar.dataset.value)),
            card.querySelector('.reason').textContent])"""
        for (bars, reason), row in zip(page.browser.execute_script(script), rows, strict=True):
            why: Any = served.ask(f"/v1/explanations?user_id=user-0-1&bundle_id={row['bundle_id']}")
            parts = [why["history"], why["items"], why["youth"]]
            assert sum(parts) == pytest.approx(row["score"], abs=1e-5)
            # Youth fades with evidence: all of it for a new bundle, hardly any for one that many took.
            assert (abs(why["youth"]) > 0.01) == row["is_new"]
            assert bars == pytest.approx(parts if why["youth"] else parts[:2])
            assert reason.startswith("New, so its items decide" if row["is_new"] else "Taken ")
        assert page.one("#youth-legend").is_displayed()
        assert page.complaints() == []
