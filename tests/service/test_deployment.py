"""The image, what stands beside it and the dashboard: read, compared with the program, run as they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from service_client import linked_run
from typer.main import get_command

from coheat.cli import app, retrain, serve
from coheat.service.keys import KeyRing
from coheat.service.metrics import Metrics

INDENTED = re.compile(r"(?:\n    [^\n]*|\n(?=\n    ))+")
ROOT = Path(__file__).parents[2]
assert retrain  # they add their commands to `app`
assert serve
START = [sys.executable, "-c", "from coheat.cli import main; main()"]


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile, joined where they go on, as (word, rest)."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def last(word: str) -> str:
    return [rest for name, rest in instructions() if name == word][-1]


def health_command() -> list[str]:
    words: list[str] = json.loads(last("HEALTHCHECK").split("CMD", 1)[1])
    return words


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in sent, source


def test_the_image_has_no_root_and_no_torch() -> None:
    assert last("USER").split(":")[0].isdigit()
    assert int(last("USER").split(":")[0]) > 0
    installed = next(rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    assert "'.[serve,postgres]'" in installed
    assert "[train" not in installed


def test_the_image_command_has_options_that_exist() -> None:
    words = json.loads(last("CMD"))
    assert json.loads(last("ENTRYPOINT")) == ["coheat"]
    command = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_it_starts_with_the_state_alone_writable_and_its_health_check_passes(tmp_path: Path) -> None:
    run, state = linked_run(tmp_path), tmp_path / "state"
    KeyRing(state / "keys.json").create("shop", "write")
    port = str(9000 + os.getpid() % 20000)
    words = [
        {"/model": str(run), "/state": str(state), "8000": port}.get(w, w) for w in json.loads(last("CMD"))
    ]
    settings = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, **settings, "HOME": str(state), "TMPDIR": str(tmp_path / "nowhere")}
    probe = [sys.executable, *(word.replace("8000", port) for word in health_command()[1:])]
    server = subprocess.Popen(
        [*START, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 240
        while (done := subprocess.run(probe, check=False, capture_output=True)).returncode:
            assert server.poll() is None, server.communicate()
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(240)
    assert subprocess.run(probe, check=False, capture_output=True).returncode, "nobody answers any more"


def test_what_is_mounted_exists_and_volumes_are_declared() -> None:
    document = compose()
    for name, service in document["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), (name, source)
            elif not source.startswith("$"):
                assert source in document["volumes"], (name, source)
        assert set(service.get("secrets", ())) <= set(document["secrets"])
        assert set(service.get("depends_on", ())) <= set(document["services"])
    service = document["services"]["service"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    mounted = {volume.split(":", 1)[1].removesuffix(":ro") for volume in service["volumes"]}
    assert {word for word in json.loads(last("CMD")) if word.startswith("/")} == {
        place.split(":")[-1] for place in mounted if place.startswith("/") or ":" in place
    }


def test_replicas_have_a_database_and_options_that_exist() -> None:
    """Only with their profile: who wants one service gets one."""
    services = compose()["services"]
    replica, postgres = services["replica"], services["postgres"]
    assert replica["profiles"] == postgres["profiles"] == ["replicas"]
    assert "profiles" not in services["service"]
    serve_command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    known = {option for parameter in serve_command.params for option in parameter.opts}
    assert {word for word in replica["command"] if word.startswith("--")} <= known
    address = urlsplit(replica["environment"]["COHEAT_STATE"])
    environment = postgres["environment"]
    assert (address.username, address.password, address.hostname, address.path) == (
        environment["POSTGRES_USER"], None, "postgres", f"/{environment['POSTGRES_DB']}",
    )  # fmt: skip
    assert replica["environment"]["PGPASSWORD"] == environment["POSTGRES_PASSWORD"]
    for guard in ("read_only", "cap_drop", "security_opt"):
        assert replica[guard] == services["service"][guard]


def test_the_commands_in_the_comments_of_compose_are_known() -> None:
    text = (ROOT / "compose.yaml").read_text()
    found = re.findall(r"service (keys create .*)", text)
    assert len(found) == 2
    keys = get_command(app).commands["keys"].commands["create"]  # type: ignore[attr-defined]
    known = {option for parameter in keys.params for option in parameter.opts}
    for line in found:
        assert {word for word in shlex.split(line) if word.startswith("--")} <= known


def test_prometheus_asks_the_service_where_it_listens_with_its_key() -> None:
    job = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"][0]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert host in compose()["services"]
    assert port == last("EXPOSE") == json.loads(last("CMD"))[json.loads(last("CMD")).index("--port") + 1]
    assert job["metrics_path"] == "/metrics"
    files = job["http_headers"]["X-API-Key"]["files"]
    assert [Path(file).name for file in files] == compose()["services"]["prometheus"]["secrets"]
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "/" + Path(compose()["secrets"]["prometheus_key"]["file"]).name in ignored


def metrics() -> dict[str, set[str]]:
    """The series that the service really has, each with its labels."""
    found = {}
    for family in Metrics().registry.collect():
        names = {
            "counter": [f"{family.name}_total"],
            "histogram": [f"{family.name}_{end}" for end in ("bucket", "sum", "count")],
        }.get(family.type, [family.name])
        for name in names:
            found[name] = {"le"} if name.endswith("_bucket") else set[str]()
    own = vars(Metrics()).values()
    for one in own:
        labels = set(getattr(one, "_labelnames", ()))
        for name in list(found):
            if (
                getattr(one, "_name", None)
                and name.removesuffix("_total").removesuffix("_bucket") == one._name
            ):
                found[name] |= labels
    return found


def test_every_metric_of_the_dashboard_and_its_labels_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/coheat.json").read_text())
    known, used = metrics(), set()
    for panel in dashboard["panels"]:
        assert panel["targets"]
        for target in panel["targets"]:
            names = set(re.findall(r"\b(?:coheat|process)_[a-z_]+\b", target["expr"]))
            assert names, target
            assert names <= set(known), names - set(known)
            labels = {
                label for part in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in part.split(", ")
            }
            labels |= set(re.findall(r"[{,]\s*(\w+)\s*=", target["expr"]))
            labels |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            allowed = set().union(*(known[name] for name in names))
            assert labels <= allowed, (target, labels - allowed)
            used |= names
    own = {name for name in known if name.startswith("coheat_")}
    unseen = {name for name in own - used if not name.endswith(("_sum", "_count"))}
    assert not unseen, f"the dashboard does not show {unseen}"
    provider = ROOT / "deploy/grafana/provisioning/dashboards/coheat.yaml"
    path = yaml.safe_load(provider.read_text())["providers"][0]["options"]["path"]
    assert any(path in volume for volume in compose()["services"]["grafana"]["volumes"])
    source = ROOT / "deploy/grafana/provisioning/datasources/coheat.yaml"
    uid = yaml.safe_load(source.read_text())["datasources"][0]["uid"]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {uid}


def docker_works() -> bool:
    """Whether there is the program and a daemon answers it: some machines have the one without the other."""
    program = shutil.which("docker")
    asked = [program or "", "version", "--format", "{{.Server.Version}}"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=20) if program else None
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found is not None and found.returncode == 0 and bool(found.stdout.strip())


@pytest.mark.slow
@pytest.mark.skipif(not docker_works(), reason="Docker does not run here")
def test_the_image_builds_and_holds_no_torch() -> None:
    subprocess.run(["docker", "build", "--tag", "coheat-test", "."], cwd=ROOT, check=True, timeout=900)
    asked = "import importlib.util as u; print([n for n in ('torch', 'numba', 'scipy') if u.find_spec(n)])"
    found = subprocess.run(
        ["docker", "run", "--rm", "--read-only", "--entrypoint", "python", "coheat-test", "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout.strip() == "[]"


def test_the_nightly_jobs_are_commands_that_exist() -> None:
    page = (ROOT / "docs/nightly.md").read_text()
    job = next(
        yaml.safe_load(text)
        for text in (block.group().replace("\n    ", "\n") for block in INDENTED.finditer(page))
        if text.strip().startswith("apiVersion")
    )
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [line] = pod["containers"][0]["args"]
    assert pod["restartPolicy"] == "Never"  # a policy for failures demands it
    assert "--from http" in line  # the state of a service on another machine cannot be read from its files
    cron = next(text for text in page.splitlines() if "30 3 * * *  " in text)
    systemd = next(text for text in page.splitlines() if "ExecStart=" in text)
    assert r"date +\%F" in cron
    assert "$$(date +%%F)" in systemd
    command = get_command(app).commands["retrain"]  # type: ignore[attr-defined]
    for text in (line, cron, systemd.rstrip("'")):
        words = text.partition("coheat retrain ")[2].replace("$(date", "DATE").split()
        context = command.make_context("retrain", [word for word in words if "%F" not in word])
        assert str(context.params["reload"]).endswith(":8000")
        assert Path(context.params["run"]).name == "shop"
