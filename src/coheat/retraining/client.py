"""Asking a running service, with nothing but the standard library."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from coheat.errors import ConfigError

KEY_VARIABLE = "COHEAT_KEY"
TIMEOUT = 60.0
"""Seconds for an answer; loading a model takes some."""
PATIENCE = (1, 2, 4, 8, 16)
"""Seconds to wait where the service is busy, one time after the other."""


def is_address(text: str) -> bool:
    """Whether a text is the address of a service, not a path."""
    return text.startswith(("http://", "https://"))


@dataclass(frozen=True)
class Client:
    """A service at an address; without a key, that of the environment, if there is one."""

    address: str
    key: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if not is_address(self.address) or not parts.hostname:
            raise ConfigError(f"{self.address}: not the address of a service, such as http://127.0.0.1:8000")

    def get(self, path: str, **parameters: int | str) -> dict[str, Any]:
        return self._ask("GET", f"{path}?{urlencode(parameters)}" if parameters else path)

    def post(self, path: str) -> dict[str, Any]:
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        for wait in (*PATIENCE, None):
            request = urllib.request.Request(self.address.rstrip("/") + path, method=method)
            if key := self.key or os.environ.get(KEY_VARIABLE):
                request.add_header("X-API-Key", key)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                    document: dict[str, Any] = json.loads(answer.read())
                    return document
            except urllib.error.HTTPError as error:
                if error.code != 503 or wait is None:
                    raise self._refused(error) from None
                time.sleep(wait)
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                raise ConfigError(
                    f"{self.address}: no service answers there ({reason}); is coheat serve running?"
                ) from None
        raise AssertionError

    def _refused(self, error: urllib.error.HTTPError) -> ConfigError:
        try:
            said = str(json.loads(error.read())["detail"])
        except (OSError, ValueError, KeyError, TypeError):
            said = str(error.reason)
        hint = f"; give a key in {KEY_VARIABLE}" if error.code in (401, 403) else ""
        return ConfigError(f"{self.address}: answers {error.code}: {said}{hint}")
