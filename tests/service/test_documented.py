"""The commands of docs/service.md that ask a service, as they are typed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from service_common import SMALL, RandomEmber, serving, write_random_artifact

PAGE = Path(__file__).parents[2] / "docs" / "service.md"
ELSEWHERE = "shop.example"


def commands() -> list[str]:
    """Indented, possibly over several lines that are indented further."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^    (curl .*(?:\n     +.*)*)", text, re.MULTILINE)
    return [one for one in found if ELSEWHERE not in one]


def test_every_command_is_answered(tmp_path: Path) -> None:
    assert len(commands()) > 15
    (tmp_path / "yesterday.ndjson").write_text('{"user_id": "ann", "bundle_id": "new"}\n')
    write_random_artifact(tmp_path / "run", SMALL, model_class=RandomEmber)  # it has a knob
    with serving(tmp_path / "run") as server:
        for command in commands():
            here = command.replace("localhost:8000", f"127.0.0.1:{server.port}")
            here = here.replace('"4", "8", "15"', '"item-4", "item-8", "item-15"').replace(
                "/items/4", "/items/item-4"
            )
            done = subprocess.run(
                ["bash", "-c", here.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            if done.returncode == 127:
                pytest.skip("there is no curl here")
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.startswith("{"), command
