"""The demo end to end as it is typed, and its parts where the answer is known."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quick_python import programs

from coheat import plots
from coheat.data import planted_world, write_tables
from coheat.data.dataset import Indices
from coheat.data.files import read_split
from coheat.data.split import Split
from coheat.demo import EVERYTHING, MODELS, OURS, SCENARIOS, YOUNG, YOUNG_MODELS, K, run_demo
from coheat.demo.walk import (
    NEW_BUNDLE_SIZE,
    TURNS,
    add_a_bundle,
    compose_bundle,
    recommend_to_one,
    sides,
    verdict,
    young_verdict,
)
from coheat.errors import ConfigError
from coheat.recommender import Recommender
from coheat.runs import open_run, train_run
from coheat.testing import small_data


def shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{programs()}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, shell=True, cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )


@dataclass(frozen=True)
class Done:
    """A finished demo: where it was started, what it printed, the page it wrote."""

    directory: Path
    found: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    directory = tmp_path_factory.mktemp("demo")
    ended = shell("coheat demo --quick --out demo --json", directory)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    return Done(directory, found, (directory / found["report"]).read_text(encoding="utf-8"))


def test_every_model_is_judged_in_every_scenario(done: Done) -> None:
    assert set(done.found["scenarios"]) == set(SCENARIOS)
    for scenario in done.found["scenarios"].values():
        assert set(scenario["models"]) == set(MODELS)
        for report in scenario["models"].values():
            for part in ("test", "validation"):
                assert all(0 <= report[part][f"{metric}@{K}"] <= 1 for metric in ("recall", "ndcg"))
    assert done.found["scenarios"]["cold"]["models"]["popularity"]["test"][f"recall@{K}"] == 0
    assert done.found["scenarios"]["cold"]["split"]["test"]["cold_interaction_share"] == 1


def test_ember_has_the_plain_names_and_its_rivals_runs_of_their_own(done: Done) -> None:
    runs = done.directory / "demo" / "runs"
    trained = {path.name: open_run(path).record.model for path in runs.iterdir()}
    rivals = {
        f"{name}-{model}": model for name in SCENARIOS for model in ("coheat", "counting", "popularity")
    }
    rivals |= {f"{YOUNG}-{model}": model for model in YOUNG_MODELS if model != OURS}
    assert trained == dict.fromkeys((*SCENARIOS, YOUNG, EVERYTHING), OURS) | rivals


def test_what_is_served_has_learned_from_everything(done: Done) -> None:
    run = open_run(done.directory / done.found["served"])
    assert (run.record.scenario, run.record.model) == (EVERYTHING, OURS)
    trained = run.artifact.training_data()
    assert trained.user_bundle.nnz == done.found["world"]["user_bundle"], "nothing is held out"
    assert f"coheat serve {done.found['served']}" in done.found["commands"]
    assert f"<code>{done.found['served']}</code>" in done.page
    taken = {shown["bundle_id"]: shown["times_taken"] for shown in done.found["user"]["recommended"]}
    assert not set(taken) & set(done.found["user"]["bundles"]), "nothing that they have"
    assert all(trained.popularity[trained.bundles.position(name)] == taken[name] for name in taken)


def test_young_bundles_are_followed_by_model_and_level(done: Done) -> None:
    found = done.found["first_days"]
    assert set(found["levels"]) == set(YOUNG_MODELS)
    thinned = read_split(done.directory / "demo" / "splits" / YOUNG).report()["warm_up"]["levels"]
    for model, levels in found["levels"].items():
        positives = {name: group["positives"] for name, group in levels.items()}
        assert positives == {name: group["test"] for name, group in thinned.items() if group["bundles"]}
        for group in levels.values():
            assert f">{group[f'recall@{K}']:.3f}<".replace(">0", ">") in done.page
        # Counting does not know takers at all, popularity nothing else.
        assert model != "popularity" or levels["0"][f"recall@{K}"] == 0
    assert escape(found["verdict"]) in done.page


def test_the_verdict_on_young_bundles_names_the_best_first() -> None:
    def levels(*recalls: float) -> dict[str, dict[str, float]]:
        return {name: {f"recall@{K}": r} for name, r in zip(("0", "1", "2", "others"), recalls, strict=True)}

    said = young_verdict({"ember": levels(0.5, 0.25, 0.5, 1.0), "counting": levels(0.75, 0.125, 0.125, 1.0)})
    assert "nobody had taken: counting 0.7500, Ember 0.5000;" in said
    assert said.endswith("on average: Ember 0.3750, counting 0.1250.")


def test_turning_the_knob_gives_places_to_new_bundles_and_takes_them_from_known_ones(done: Done) -> None:
    knob = done.found["knob"]
    turned = dict(knob["turned"])
    assert list(turned) == sorted({*TURNS, knob["value"]})
    new, known = ([found[side] for found in turned.values()] for side in ("new", "known"))
    assert new[0] == 0, "hidden"
    assert new == sorted(new)
    # At 0, young bundles that some have taken already are pushed down with the new ones.
    assert known[1:] == sorted(known[1:], reverse=True)
    assert new[0] < new[-1]
    assert known[0] > known[-1]
    # As the command line evaluates the finished runs, which have the knob as it was trained.
    reports = done.found["scenarios"]["all"]["models"]
    for model, found in {OURS: turned[knob["value"]], **knob["rivals"]}.items():
        assert found["new"] == pytest.approx(reports[model]["test"]["by_popularity"]["0"][f"recall@{K}"])
    assert f"here {knob['value']:g} times their fair share" in done.page


def test_what_is_printed_is_kept_beside_the_data(done: Done) -> None:
    kept = json.loads((done.directory / "demo" / "demo.json").read_text(encoding="utf-8"))
    assert kept == {key: value for key, value in done.found.items() if key != "report"}


class Elements(HTMLParser):
    """All elements of a page with their attributes, and what is still open at its end."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_on_its_own(done: Done) -> None:
    elements = Elements(done.page)
    assert not elements.open
    assert not {tag for tag, _ in elements.found} & {"script", "link", "img", "iframe", "object", "image"}
    assert "http" not in done.page
    assert not re.search(r"@import|url\((?!#)", done.page)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert not [name for name, count in Counter(ids).items() if count > 1]
    targets = [attributes["href"] for _, attributes in elements.found if "href" in attributes]
    targets += re.findall(r"url\((#[^)]+)\)", done.page)
    assert targets
    assert {str(target)[1:] for target in targets} <= set(ids)
    assert sum(tag == "svg" for tag, _ in elements.found) == 10
    assert "prefers-color-scheme: dark" in done.page
    assert str(done.directory) not in done.page


def test_the_page_has_the_printed_figures(done: Done) -> None:
    for scenario in done.found["scenarios"].values():
        assert escape(scenario["verdict"]) in done.page
        for report in scenario["models"].values():
            for part in ("test", "validation"):
                for metric in ("recall", "ndcg"):
                    assert f">{report[part][f'{metric}@{K}']:.4f}<" in done.page
    for shown in done.found["user"]["recommended"]:
        assert f">{shown['bundle_id']}<" in done.page
    for command in done.found["commands"]:
        assert escape(command) in done.page


def test_the_new_bundle_finds_its_audience(done: Done) -> None:
    new = done.found["new_bundle"]
    assert len(new["items"]) == NEW_BUNDLE_SIZE
    assert f"<b>{new['bundle_id']}</b>" in done.page
    for receiver in new["audience"]:
        assert f">{receiver['user_id']}<" in done.page
    assert [receiver["rank"] for receiver in new["audience"]] == list(range(1, len(new["audience"]) + 1))
    assert 0 < new["lists_entered"] <= new["n_users"]
    if new["bundle_id"] in new["list_of_first"]:
        assert (
            f'<tr class="new"><td class="">{new["list_of_first"].index(new["bundle_id"]) + 1}</td>'
            in done.page
        )


def test_the_commands_to_go_on_with_work_as_printed(done: Done) -> None:
    *asking, serving = done.found["commands"]
    assert len(asking) >= 5
    assert " serve " in serving, "the last one, which does not end, is tested with the service"
    for command in asking:
        ended = shell(f"{command} --json", done.directory)
        assert ended.returncode == 0, f"{command}\n{ended.stderr}"
        answer = json.loads(ended.stdout)
        if " audience " in command:
            expected = [receiver["user_id"] for receiver in done.found["new_bundle"]["audience"]]
            assert [row["user_id"] for row in answer["audience"]] == expected
        if " recommend " in command:
            recommended = [row["bundle_id"] for row in answer["recommendations"]]
            if "--candidates new" in command:
                assert done.found["new_bundle"]["bundle_id"] in recommended
            else:
                assert recommended == [shown["bundle_id"] for shown in done.found["user"]["recommended"]]
        if "--by-popularity" in command:
            report = done.found["scenarios"]["cold"]["models"][OURS]
            assert answer["test"] == report["test"]
        if " compare " in command:
            run = f"demo/runs/{YOUNG}"
            assert answer["warm_up"][run] == done.found["first_days"]["levels"][OURS]
            assert (done.directory / "demo" / "warm-up.png").exists()


def test_a_second_time_for_people_replaces_its_own_output_only(done: Done) -> None:
    foreign = done.directory / "demo" / "notes.txt"
    foreign.write_text("mine")
    ended = shell("coheat demo --quick --out demo", done.directory)
    assert ended.returncode == 0, ended.stderr
    assert foreign.read_text() == "mine"
    again = json.loads((done.directory / "demo" / "demo.json").read_text(encoding="utf-8"))
    for name, scenario in again["scenarios"].items():
        assert scenario["verdict"] == done.found["scenarios"][name]["verdict"], "same seed, same numbers"
        assert scenario["verdict"] in " ".join(ended.stdout.split())
    assert again["first_days"] == done.found["first_days"]
    for text in ("brand-new", "report.html", *again["commands"]):
        assert text in ended.stdout


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="no earlier demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigError, match="a file is in the way"):
        run_demo(tmp_path / "thesis.txt")


def judged(**values: tuple[float, float]) -> dict[str, dict[str, Any]]:
    return {name: {"test": {f"recall@{K}": r, f"ndcg@{K}": n}} for name, (r, n) in values.items()}


def test_the_verdict_follows_the_numbers() -> None:
    won = verdict("cold", judged(ember=(0.5, 0.4), coheat=(0.3, 0.1), counting=(0.25, 0.2)))
    assert won == "cold: Ember is ahead of CoHeat, Recall@20 0.5000 against 0.3000."
    lost = verdict("cold", judged(ember=(0.1, 0.05), coheat=(0.0, 0.0), counting=(0.25, 0.2)))
    assert lost == "cold: counting beats Ember, 0.2500 against 0.1000 in Recall@20."
    mixed = verdict("all", judged(ember=(0.1, 0.3), coheat=(0.25, 0.1), counting=(0.2, 0.2)))
    assert mixed.startswith("all: CoHeat beats Ember")
    assert mixed.endswith("by nDCG@20 it is the other way round, 0.3000 to 0.2000 (counting).")
    level = verdict("warm", judged(ember=(0.25, 0.2), coheat=(0.0, 0.0), counting=(0.25, 0.2)))
    assert level == "warm: Ember and counting are level, Recall@20 0.2500 against 0.2500."


class SameForAll:
    """A scorer with one score for each bundle, whoever asks."""

    def __init__(self, scores: npt.NDArray[Any]):
        self.row = scores

    def scores(self, users: Indices) -> npt.NDArray[Any]:
        return np.tile(self.row.astype(np.float32), (len(users), 1))


def test_both_sides_are_judged_within_lists_of_all_bundles() -> None:
    world = planted_world(bundles_per_group=16, cold_per_group=6)  # 24 new and 40 known: either fills a list
    new = world.train.popularity == 0
    assert sides(SameForAll(~new), world).new == 0
    assert sides(SameForAll(new), world).known == 0
    half = np.array([group(bundle) in ("0", "1") for bundle in world.train.bundles.ids])
    assert sides(SameForAll(2 * (new & half) + ~new), world).new == 0.5, "two of four groups are served"


def test_a_composed_bundle_holds_what_the_same_people_have() -> None:
    owned = [(f"u{n}", item) for n in range(4) for item in ("tent", "stove")]
    owned += [("u0", "lamp"), ("u5", "lamp"), ("u6", "lamp"), ("u6", "pen"), ("u7", "tent")]
    data = small_data(user_bundle=[("u0", "b")], user_item=owned, bundle_item=[("b", "pen")])
    # tent: 5 owners; with it stove: 4 / sqrt(4 * 5), lamp: 1 / sqrt(3 * 5), pen: nobody
    assert compose_bundle(data, 3) == ["tent", "stove", "lamp"]


@pytest.fixture(scope="module")
def planted_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, Path]:
    """Ember on a world where everybody wants exactly the bundles of their own group."""
    directory = tmp_path_factory.mktemp("planted")
    world = planted_world()
    write_tables(world, directory / "data")
    settings = {"embedding_size": 16, "learning_rate": 0.02, "epochs": 40, "batch_size": 64}
    train_run(directory / "data", directory / "run", "ember", "demo", settings)
    return world, directory / "run"


def group(name: str) -> str:
    return name.split("-")[1]


def test_a_new_bundle_goes_to_the_people_who_like_its_items(planted_run: tuple[Split, Path]) -> None:
    world, run = planted_run
    new = add_a_bundle(Recommender.load(run), world.train)
    groups = {group(item) for item in new.items}
    assert len(groups) == 1
    assert {group(receiver.user_id) for receiver in new.audience} == groups
    own = {world.train.users[row]: world.train.user_item[[row]].indices for row in range(world.train.n_users)}
    wanted = set(world.train.items.positions(new.items).tolist())
    assert all(receiver.owned == len(wanted & set(own[receiver.user_id])) for receiver in new.audience)
    assert new.owned_on_average == pytest.approx(
        sum(len(wanted & set(items)) for items in own.values()) / len(own)
    )
    assert new.bundle_id in new.list_of_first


def test_the_list_of_one_user_says_what_is_true(planted_run: tuple[Split, Path]) -> None:
    world, run = planted_run
    shown = recommend_to_one(Recommender.load(run), world.train)
    row = world.train.users.position(shown.user_id)
    assert shown.bundles == [world.train.bundles[int(b)] for b in world.train.user_bundle[[row]].indices]
    assert len(shown.bundles) == world.train.user_bundle.sum(axis=1).max()
    later = {world.train.bundles[int(bundle)] for bundle in world.test[[row]].indices}
    assert later <= {bundle.bundle_id for bundle in shown.recommended}, "planted"
    for bundle in shown.recommended:
        position = world.train.bundles.position(bundle.bundle_id)
        contents = {world.train.items[int(item)] for item in world.train.bundle_item[[position]].indices}
        assert set(bundle.shared_items) == contents & set(shown.items)
        assert bundle.size == len(contents)
        assert bundle.times_taken == world.train.popularity[position]


def test_a_picture_takes_the_colours_of_the_page() -> None:
    values = {"cold": {"ours": 0.5, "theirs": 0.0}}
    picture = plots.to_svg(lambda axes: plots.draw_bars(axes, values, "A & B"), "name", 'said "so" < & more')
    assert "var(--first)" in picture
    assert not [colour for colour in plots.COLOURS.values() if colour in picture]
    assert 'aria-label="said &quot;so&quot; &lt; &amp; more"' in picture
    assert all(name.startswith("name-") for name in re.findall(r'\bid="([^"]+)"', picture))
    assert ">.500<" in picture
    assert ">0<" in picture


def test_the_page_says_where_training_coheat_on_did_not_help(done: Done) -> None:
    reports = {name: found["models"]["coheat"] for name, found in done.found["scenarios"].items()}
    early = [n for n, report in reports.items() if report["epoch"] <= report["settings"]["epochs"] / 5]
    said = re.search(r"In ([\w ]+) its best epoch on validation is one of the first", done.page)
    assert (said[1].split(" and ") if said else []) == early
