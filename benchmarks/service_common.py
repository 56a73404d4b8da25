"""What the measurements of the service share: a model of any size, a server process, plain HTTP.

The model has random vectors and relations: how fast it answers does not depend on what it learned.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from coheat.artifact import Description, save_artifact
from coheat.data.dataset import BundleData, relation
from coheat.ids import Vocabulary
from coheat.models.base import FloatArray, Model, ModelConfig, numpy
from coheat.rng import Randomness
from coheat.runs import contents_of
from coheat.served import Block, Curve, Knob, Layers, Overlap, Served
from coheat.served.forest import FEATURES, STATISTICS, Forest

JSON = {"Content-Type": "application/json"}
TEMPERATURE = 60.0
START = "from coheat.cli import main; main()"
PROCESS: type[subprocess.Popen[str]] = subprocess.Popen
"""What starts a service; tests, which start dozens, have one that takes less time."""


@dataclass(frozen=True)
class Size:
    """Counts of a model; `width` is that of a whole vector."""

    n_users: int = 53_897
    n_bundles: int = 27_694
    n_items: int = 42_563
    width: int = 128
    bundles_per_user: int = 31
    items_per_user: int = 42
    items_per_bundle: int = 4


IFASHION = Size()
SMALL = Size(60, 40, 50, 8, 3, 5, 3)


class RandomVectors(Model):
    """Two views of random numbers; every tenth bundle is cold."""

    config: ModelConfig

    def _random(self, name: str, *shape: int) -> FloatArray:
        generator = self.rng.torch_generator(name)
        return numpy(torch.randn(*shape, generator=generator) / shape[-1] ** 0.5)

    def served(self) -> Served:
        data, half = self.data, self.config.embedding_size
        users, bundles = (self._random(name, n, 2 * half)
                          for name, n in (("users", data.n_users), ("bundles", data.n_bundles)))  # fmt: skip
        rising, falling = tanh_curves(TEMPERATURE)
        history = Block("history", "history", half, rising)
        items = Block("affiliation", "items", half, falling, self._random("items", data.n_items, half))
        layers = Layers(
            users=self._random("user layers", 1, data.n_users, half),
            bundles=self._random("bundle layers", 1, data.n_bundles, half),
            items=self._random("item layers", 1, data.n_items, half),
            normalise=True,
        )
        views = (history, slice(half)), (items, slice(half, None))
        blocks = [(block, users[:, columns], bundles[:, columns]) for block, columns in views]
        return Served.create(self.relations, blocks, layers=layers)


class RandomEmber(RandomVectors):
    """The default model's form: three blocks as wide as a view and one of prospects, which is a number and a
    forest, four overlaps, a bias and a knob."""

    def served(self) -> Served:
        data, half = self.data, self.config.embedding_size
        rising, falling = tanh_curves(TEMPERATURE)
        kinds = ("history", "affiliation", "companions")
        users, bundles = (
            {kind: self._random(f"{side} {kind}", n, half) for kind in kinds}
            for side, n in (("users", data.n_users), ("bundles", data.n_bundles))
        )
        blocks = (
            Block("history", "history", half, rising),
            Block("affiliation", "items", half, falling, self._random("items", data.n_items, half)),
            Block("companions", "history", half, rising),
        )
        rare = np.abs(self._random("rare", data.n_items, 1))[:, 0]
        overlaps = (
            Overlap("overlap", "log", falling, taken_exponent=0.5, item_weights=rare),
            Overlap("own items", "log", falling, taken=0.0),
            Overlap("items of own bundles", "log", rising, own=0.0),
            Overlap("owned share", "fourth", falling, taken=0.0, size_exponent=1.0),
        )
        lines = ((-9.0, 0.0), (0.0, 0.0), (0.5, 0.0))
        knob = Knob(1.0, (0.0, 1.0, 2.0), (0.0, 8.0), lines, (0.0, 0.5, 1.0), "a welcome")
        parts = [(block, users[block.name], bundles[block.name]) for block in blocks]
        parts.append(self._prospects())
        return Served.create(
            self.relations, parts, overlaps=overlaps, bias=rising, knobs={"welcome": knob}
        ).turned(welcome=1.0)

    def _prospects(self) -> tuple[Block, FloatArray, FloatArray]:
        """A number for each bundle, the same whoever asks, and trees that find that of a new one."""
        trees, depth = 300, 3
        asked = np.arange(trees * depth).reshape(trees, depth) % FEATURES
        thresholds, values = (
            self._random(name, trees, width).astype(np.float64)
            for name, width in (("thresholds", depth), ("leaves", 2**depth))
        )
        forest = Forest(asked, thresholds, values)
        items = np.abs(self._random("statistics", self.data.n_items, STATISTICS))
        young = Curve.constant(0.0, 0.5)
        block = Block("prospects", "items", 1, young, items, forest=forest)
        ones = np.ones((self.data.n_users, 1), dtype=np.float32)
        return block, ones, self._random("prospects", self.data.n_bundles, 1)


def tanh_curves(temperature: float) -> tuple[Curve, Curve]:
    """CoHeat's weights of history and of items, over how often a bundle was taken."""
    level = int(10 * temperature) + 1
    history = Curve.tabulated(lambda n: np.tanh(n / temperature), level)
    return history, Curve.tabulated(lambda n: 1 - np.tanh(n / temperature), level)


def write_random_artifact(
    directory: Path, size: Size, seed: int = 0, model_class: type[Model] = RandomVectors
) -> None:
    """An artifact of this size with ids user-0 ..., bundle-0 ..., item-0 ...; an existing one is replaced."""
    rng = np.random.default_rng(seed)

    def random_relation(n_rows: int, n_columns: int, per_row: int, first: int = 0) -> Any:
        rows = np.repeat(np.arange(n_rows), per_row)
        return relation(rows, rng.integers(first, n_columns, len(rows)), (n_rows, n_columns))

    def ids(kind: str, count: int) -> Vocabulary:
        return Vocabulary([f"{kind}-{number}" for number in range(count)], kind)

    data = BundleData(
        ids("user", size.n_users),
        ids("bundle", size.n_bundles),
        ids("item", size.n_items),
        random_relation(size.n_users, size.n_bundles, size.bundles_per_user, first=size.n_bundles // 10),
        random_relation(size.n_users, size.n_items, size.items_per_user),
        random_relation(size.n_bundles, size.n_items, size.items_per_bundle),
    )
    model = model_class(data, ModelConfig(embedding_size=size.width // 2), Randomness(seed))
    described = Description(
        model="random", config={}, training={}, seed=seed, scenario="all", data_source="random numbers",
        data_fingerprint=str(seed), best_epoch=0, metrics={}, seconds=0.0, reason="made up",
    )  # fmt: skip
    save_artifact(directory, contents_of(model, described))


class Server:
    """A service in a process of its own, as `coheat serve` starts it, on a free port."""

    def __init__(
        self,
        run: Path,
        *options: str,
        seconds: float = 240.0,
        prelude: str = "",
        wait: bool = True,
        **popen: Any,
    ):
        """`prelude` is Python that the process runs first; without `wait` it need only listen."""
        serve = ["serve", str(run), "--port", "0", "--drain", "0", *options]
        command = [sys.executable, "-c", f"{prelude}\n{START}", *serve]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = PROCESS(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment, **popen
        )
        self.port = self._port(seconds, wait)

    def _port(self, seconds: float, wait: bool) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)", line)
        if found is None:
            raise RuntimeError(f"the service did not start: {self.stop()}")
        self.port = int(found[1])
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                if self.ask("GET", "/health/ready")[0] == 200 or not wait:
                    return self.port
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"the service did not get ready: {self.stop()}")

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            return ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def kill(self) -> None:
        """End it without a word, as a power cut would end the process."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> str:
        """Ask it to end; what it said on standard error."""
        self.process.terminate()
        self.process.communicate(timeout=240)
        return self.said()

    def said(self) -> str:
        """What it wrote to its log."""
        self.log.seek(0)
        return self.log.read()

    def memory_megabytes(self) -> float:
        """Memory that is its own: without files that are mapped from the disk."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        """How much of a processor's time it took so far."""
        after_name = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, {**(JSON if body is not None else {}), **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    is_json = "json" in (answer.getheader("Content-Type") or "")
    return answer.status, json.loads(content) if is_json and content else content.decode()


@contextmanager
def serving(run: Path, *options: str, **popen: Any) -> Iterator[Server]:
    """A server that is ended with the block."""
    server = Server(run, *options, **popen)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def in_path(name: str) -> str:
    """An id as it stands in a path."""
    return quote(name, safe="")
