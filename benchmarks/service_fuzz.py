"""Random requests against every documented route, fitting and unfitting: no fault, no undocumented answer.

python benchmarks/service_fuzz.py --examples 1000
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis
from common import write_json
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from service_common import SMALL, write_random_artifact

from coheat.service.app import create_app
from coheat.service.keys import KeyRing

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def fire(run: Path, state: Path, examples: int) -> dict[str, Counter[int]]:
    """So many requests of each kind to each route; how often it answered what. Raises at the first fault."""
    headers = {"X-API-Key": KeyRing(state / "keys.json").create("fuzz", "write")}
    app = create_app(run, state)
    answers: dict[str, Counter[int]] = {}
    try:
        for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
            operation = found.ok()
            counts = answers[operation.label] = Counter()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _shoot(operation, mode, headers, examples, counts)
    finally:
        app.state.coheat.close()
    return answers


def _shoot(
    operation: Any, mode: GenerationMode, headers: dict[str, str], examples: int, counts: Counter[int]
) -> None:
    if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
        return

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def shoot(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and sum(counts.values()) % 2:
            _name_known_ids(case)
        answer = case.call_and_validate(headers=headers, checks=CHECKS)
        counts[answer.status_code] += 1

    shoot()


def _name_known_ids(case: Any) -> None:
    """Random ids are never known; with these a request gets beyond the first check."""
    known = {"user_id": "user-1", "bundle_id": "bundle-30"}
    for parameters in (case.path_parameters, case.query):
        for name in set(parameters or {}) & set(known):
            parameters[name] = known[name]
    if isinstance(case.body, dict) and "item_ids" in case.body:
        case.body["item_ids"] = ["item-1", "item-2", "unknown"]
    elif isinstance(case.body, dict) and "user_id" in case.body:
        case.body.update(known)


def _takes_anything(operation: Any) -> bool:
    """Whether there is anything to get wrong."""
    return bool(operation.body) or any(True for _ in operation.iter_parameters())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--examples", type=int, default=200, help="of each kind per route (default: 200)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given_options = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="coheat-fuzz-") as place:
        write_random_artifact(Path(place) / "run", SMALL)
        answers = fire(Path(place) / "run", Path(place) / "state", given_options.examples)
    for label, counts in answers.items():
        print(f"{label:45}", ", ".join(f"{count} x {status}" for status, count in sorted(counts.items())))
    requests = sum(sum(counts.values()) for counts in answers.values())
    print(f"{requests} requests, no fault")
    statuses: Counter[int] = sum(answers.values(), Counter())
    write_json(
        given_options.json,
        "service_fuzz",
        {
            "examples": given_options.examples,
            "routes": len(answers),
            "requests": requests,
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
        },
    )


if __name__ == "__main__":
    main()
