"""Ask a service for a list, publish a bundle, report what came of the list. Nothing but the standard library.

    coheat serve runs/shop --port 8000 &
    python examples/http_client.py http://127.0.0.1:8000 --user "Sam 9" --item tent --item "moka pot"

Copy `Service` into your shop. Its key, where the service wants one, is read from COHEAT_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote


class Service:
    """A running `coheat serve`."""

    def __init__(self, address: str, key: str | None = None, timeout: float = 2.0):
        self.address, self.key, self.timeout = address.rstrip("/"), key, timeout

    def recommend(self, user: str, k: int = 10) -> dict[str, Any]:
        """`recommendations`, best first, and the `recommendation_id` to report with."""
        return self._ask("POST", "/v1/recommendations", {"user_id": user, "k": k})

    def publish(self, bundle: str, items: list[str]) -> dict[str, Any]:
        """From the next list on the bundle competes with all others."""
        return self._ask("POST", "/v1/bundles", {"bundle_id": bundle, "item_ids": items})

    def withdraw(self, bundle: str) -> None:
        self._ask("DELETE", f"/v1/bundles/{quote(bundle, safe='')}")

    def report(self, kind: str, user: str, bundles: list[str], recommendation: str) -> dict[str, Any]:
        """`kind`: shown, clicked or took."""
        rows = [
            {"user_id": user, "bundle_id": bundle, "kind": kind, "recommendation_id": recommendation}
            for bundle in bundles
        ]
        return self._ask("POST", "/v1/interactions", {"interactions": rows})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            # The body says in a sentence what is wrong.
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return dict(json.loads(text)) if text else {}


def main() -> None:
    parser = argparse.ArgumentParser(description="A list, a new bundle, and the list again.")
    parser.add_argument("address")
    parser.add_argument("--user", required=True)
    parser.add_argument("--item", action="append", required=True, help="of the new bundle; repeatable")
    options = parser.parse_args()

    service = Service(options.address, os.environ.get("COHEAT_KEY"))
    service.publish("example bundle", options.item)
    try:
        found = service.recommend(options.user, k=5)
        shown = [row["bundle_id"] for row in found["recommendations"]]
        print("shown:", ", ".join(shown))
        service.report("shown", options.user, shown, found["recommendation_id"])
        service.report("took", options.user, shown[:1], found["recommendation_id"])
        after = [row["bundle_id"] for row in service.recommend(options.user, k=5)["recommendations"]]
        print("after taking the first:", ", ".join(after))
    finally:
        service.withdraw("example bundle")


if __name__ == "__main__":
    main()
