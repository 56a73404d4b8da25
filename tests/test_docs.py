"""The README and the documentation: every block runs, every table agrees with the code."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import yaml
from grocery import write_grocery
from quick_python import programs, quick
from results_tables import PLACES, page_with_tables
from settings_reference import reference
from shop import make_shop

from coheat import __version__
from coheat.attributes import OPERATORS
from coheat.contract import CHECKS
from coheat.data import DataWarning, write_tables
from coheat.data import check as check_module
from coheat.models import MODELS

ROOT = Path(__file__).parents[1]
GENERATED = ("results", "reference")


def written_pages() -> list[str]:
    """The README and every page that somebody wrote; what is generated has no blocks."""
    pages = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *sorted(str(page) for page in pages if page.parts[1] not in GENERATED)]


PAGES = written_pages()
FENCE = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, where it begins, and whether the page says that it is not to be run."""

    page: str
    line: int
    language: str
    code: str
    runs: bool


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, match.start("code")),
            language=match["language"],
            code=match["code"],
            runs=match["mark"] is None,
        )
        for match in FENCE.finditer(text)
    ]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        yield tmp_path


def write_readable_shop(directory: Path) -> None:
    """Three .csv files, as a reader of the README might have them."""
    write_tables(make_shop(), directory)
    for path in directory.glob("*.parquet"):
        if "_" in path.stem:
            csv.write_csv(parquet.read_table(path), path.with_suffix(".csv"))
        path.unlink()


TRAINED_AT_LENGTH = re.compile(r"^coheat train (?!.*(--epochs|counting))", re.MULTILINE)


def run_shell(block: Block, directory: Path) -> None:
    """A few epochs show that a command runs, where the page leaves it to the preset how many there are."""
    scripts = f"{programs()}{os.pathsep}{Path(sys.executable).parent}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", TRAINED_AT_LENGTH.sub("coheat train --epochs 4 ", block.code)],
        cwd=directory,
        env={**os.environ, "PATH": scripts + os.pathsep + os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{block.page}:{block.line}\n{block.code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{block.page}:{block.line}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_in_order(page: str, workplace: Path) -> None:
    if page == "README.md":
        write_readable_shop(workplace / "shop")
    if page == "docs/tutorials/engineer.md":
        write_grocery(workplace / "grocery")
    names: dict[str, Any] = {"__name__": page}
    known = dict(MODELS)
    try:
        for block in blocks(page):
            if block.language == "sh" and block.runs:
                run_shell(block, workplace)
            elif block.language == "python" and block.runs:
                # Names stay, so that a later block may go on with what an earlier one made.
                exec(compile(block.code, f"{page}:{block.line}", "exec"), names)
    finally:
        MODELS.clear()
        MODELS.update(known)
        end_service(workplace / "service.pid")


def test_the_ten_commands_of_the_guide_are_those_that_the_tutorial_runs() -> None:
    (block,) = (one for one in blocks("docs/guide.md") if "coheat retrain" in one.code)
    run = [line for one in blocks("docs/tutorials/engineer.md") if one.runs for line in one.code.splitlines()]
    lines = block.code.splitlines()
    assert [line for line in lines if line not in run] == []
    assert sum(line.startswith(("coheat ", "curl ")) for line in lines) == 10


def end_service(place: Path) -> None:
    """What a page starts must not outlive it, also where a block fails."""
    if place.exists():
        with suppress(ProcessLookupError):
            os.kill(int(place.read_text()), signal.SIGKILL)


def commands_left_out() -> list[str]:
    """Commands that are too long to run here, one line each."""
    code = "\n".join(block.code for page in PAGES for block in blocks(page) if not block.runs)
    return [
        line for line in code.replace("\\\n", " ").splitlines() if line.startswith(("python ", "coheat "))
    ]


@pytest.mark.parametrize("command", commands_left_out())
def test_a_command_that_is_not_run_names_only_options_that_exist(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        program = [quick("python"), words[1]]
    else:
        program = [quick("coheat"), *words[1 : 3 if words[1] == "data" else 2]]
    shown = help_of(*program)
    unknown = [word for word in words if word.startswith("--") and word not in shown]
    assert not unknown, f"{command}: {unknown} not in its --help"


@cache
def help_of(*program: str) -> str:
    """Asked once, though a program may stand in several commands."""
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [*program, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocks_are_found_and_few_are_left_out() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    assert {block.language for block in found} <= {"sh", "python", ""}, "say which language a block is in"
    assert sum(block.runs for block in found) > 20
    long = ("docs/results.md", "docs/scale.md", "docs/lab-notes/")
    run = {line for block in found if block.runs for line in block.code.splitlines()}
    left_out = [
        block.page
        for block in found
        if not block.page.startswith(long) and not block.runs and not run.issuperset(block.code.splitlines())
    ]
    # What takes hours stands on the pages of results; elsewhere next to everything is run, there or on
    # another page.
    assert len(left_out) <= 5, left_out
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert text.count("\n```") == 2 * len(found), "a fence is not closed, or was not found"


def between(page: str, start: str, end: str = "<!-- end -->") -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count(start) == 1, f"{page}: {start} stands there {text.count(start)} times"
    return text.split(start)[1].split(end)[0].strip()


def test_the_reference_of_settings_is_that_of_the_code() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert page == reference(), "run python tools/settings_reference.py"


@pytest.mark.parametrize("page", PLACES)
def test_the_short_tables_are_those_of_the_kept_results(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == page_with_tables(page), "run python tools/results_tables.py"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_section(name: str) -> None:
    headings = re.findall(r"^##+ (.+)$", (ROOT / "docs/models.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert name in {heading.lower() for heading in headings}, f"docs/models.md has no section on {name}"


def contract_list() -> str:
    return "\n".join(f"- `{name}`" for name in CHECKS)


def test_contract_in_the_documentation_is_that_of_the_code() -> None:
    expected = contract_list()
    assert between("docs/conventions.md", "<!-- contract -->") == expected, f"it should read:\n{expected}"


def test_operators_in_the_documentation_are_those_of_the_code() -> None:
    rows = ["| operator | the value is |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in OPERATORS.items()]
    assert between("docs/catalogue.md", "<!-- operators -->") == "\n".join(rows)


def outcomes_table() -> str:
    """The table of findings in the text of `coheat.data.check`, without the padding."""
    rows = [line for line in str(check_module.__doc__).splitlines() if line.startswith("|")]
    lines = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        lines.append("|---|---|" if set("".join(cells)) == {"-"} else f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_outcomes_of_bad_input_are_documented() -> None:
    expected = outcomes_table()
    assert len(expected.splitlines()) > 20
    assert between("docs/data.md", "<!-- outcomes -->") == expected, f"it should read:\n{expected}"


def test_the_house_is_described_as_it_is() -> None:
    source = ROOT / "src" / "coheat"
    there = {path.stem for path in source.glob("*.py")} | {
        path.parent.name for path in source.glob("*/__init__.py")
    }
    described = re.findall(
        r"^\|[^|]*\| `(\w+)` \|", between("docs/conventions.md", "<!-- tree -->"), re.MULTILINE
    )
    assert len(described) == len(set(described))
    assert set(described) == there - {"__init__"}


def linked_pages() -> list[str]:
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")}
    return sorted(str(path.relative_to(ROOT)) for path in pages)


@pytest.mark.parametrize("page", linked_pages())
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if not target.startswith("http"):
            path = (ROOT / page).parent / target.split("#")[0]
            assert path.exists(), f"{page}: {target} is not there"


def test_changelog_and_citation_have_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__


def test_the_workflow_tests_every_python_that_we_support() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    tested = job["strategy"]["matrix"]["python"]
    assert tested == ["3.11", "3.12", "3.13"]
    assert "make test" in [step.get("run") for step in job["steps"]], "the README's command"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={tested[0]}"
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == tested


@pytest.mark.parametrize("template", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=str)
def test_an_issue_template_has_what_a_form_needs(template: Path) -> None:
    form = yaml.safe_load(template.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(asked) == len(set(asked)) > 0


def test_hooks_are_the_tools_of_the_environment() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    commands = [hook["entry"] for repo in hooks for hook in repo["hooks"]]
    assert all(command.startswith(".venv/bin/") for command in commands)
    assert {Path(command.split()[0]).name for command in commands} == {"ruff", "mypy"}
