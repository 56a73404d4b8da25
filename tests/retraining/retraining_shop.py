"""A small shop with times: people of two tastes, who go on taking bundles while a service runs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from quick_python import QuickProcess

from coheat.cli import main

USERS, BUNDLES, ITEMS = 100, 80, 60
START = 1_700_000_000
DAY = 86_400
SETTINGS = ["embedding_size=8", "epochs=12", "rehearsal_epochs=2", "batch_size=64"]
PROGRAM = [sys.executable, "-c", "from coheat.cli import main; main()"]


def write_shop(directory: Path, n: int = 800, seed: int = 0) -> None:
    """Each fourth user takes each fourth bundle of each fourth item; an eighth of the time anything."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True)
    users = rng.integers(0, USERS, n)
    pairs = sorted({(int(user), taste(int(user), BUNDLES, rng)) for user in users})
    moments = [START + int(day) * DAY for day in rng.integers(0, 90, len(pairs))]
    owned = sorted({(user, taste(user, ITEMS, rng)) for user in range(USERS) for _ in range(4)})
    held = sorted({(bundle, taste(bundle, ITEMS, rng)) for bundle in range(BUNDLES) for _ in range(4)})
    taken = {"user_id": [f"u{u}" for u, _ in pairs], "bundle_id": [f"b{b}" for _, b in pairs]}
    write(directory / "user_bundle.csv", {**taken, "timestamp": moments})
    write(directory / "user_item.csv",
          {"user_id": [f"u{u}" for u, _ in owned], "item_id": [f"i{i}" for _, i in owned]})  # fmt: skip
    write(directory / "bundle_item.csv",
          {"bundle_id": [f"b{b}" for b, _ in held], "item_id": [f"i{i}" for _, i in held]})  # fmt: skip


def taste(one: int, n: int, rng: np.random.Generator) -> int:
    found = int(rng.integers(0, n // 4)) * 4 + one % 4
    return found if rng.random() < 7 / 8 else int(rng.integers(0, n))


def write(path: Path, columns: dict[str, Any]) -> None:
    csv.write_csv(pa.table(columns), path)


def coheat(*words: object, status: int = 0) -> Any:
    """Run a command within this process, which is faster; its JSON where it gives one, else all it said."""
    out, said, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["coheat", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(said), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = argv
    assert ended.value.code == status, out.getvalue() + said.getvalue()
    text = out.getvalue()
    return json.loads(text) if "--json" in words and text else text + said.getvalue()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """A service in a process of its own; its address."""
    words = [*PROGRAM, "serve", str(run), "--port", "0", "--drain", "0", "--json"]
    with QuickProcess(words, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line.startswith("}"):
                break
        address = str(json.loads(text)["url"])
        try:
            while not is_ready(address):
                assert process.poll() is None, "the service has ended"
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait(240)


def is_ready(address: str) -> bool:
    try:
        return ask(address, "GET", "/health/ready")[0] == 200
    except urllib.error.URLError:
        return False


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    request = urllib.request.Request(address.rstrip("/") + path, method=method)
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def news(n: int = 300, seed: int = 1) -> list[dict[str, Any]]:
    """What happens while the service runs; some of it by users whom nobody knew."""
    rng = np.random.default_rng(seed)
    found = {}
    for _ in range(n):
        user = int(rng.integers(0, USERS + 6))
        found[user, taste(user, BUNDLES, rng)] = START + (91 + int(rng.integers(0, 9))) * DAY
    return [
        {"user_id": f"u{user}", "bundle_id": f"b{bundle}", "timestamp": at, "kind": "took"}
        for (user, bundle), at in found.items()
    ]
