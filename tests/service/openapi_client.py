"""A client that is made from the OpenAPI document alone: one method for each operation.

It knows nothing of the service but what the document says: paths, parameters, bodies, and the schemas of
answers, against which every answer is checked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx
from jsonschema_rs import Draft202012Validator

JSON = "application/json"


class Client:
    """Operations by their ids, without the path and method that FastAPI puts behind."""

    def __init__(self, document: dict[str, Any], transport: httpx.AsyncClient):
        self.document, self.transport = document, transport
        self.statuses: dict[str, set[int]] = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                name = operation["operationId"].split("_v1_")[0]
                setattr(self, name, self._operation(name, path, method, operation))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        raise AttributeError(f"the document has no operation {name}")

    def _operation(
        self, name: str, path: str, method: str, operation: dict[str, Any]
    ) -> Callable[..., Awaitable[Any]]:
        parameters = operation.get("parameters", [])
        places = {
            place: {one["name"] for one in parameters if one["in"] == place}
            for place in ("path", "query", "header")
        }

        async def call(body: Any = None, **given: Any) -> Any:
            headers = {key: given.pop(key) for key in places["header"] & given.keys()}
            address = path
            for key in places["path"]:
                address = address.replace(f"{{{key}}}", quote(given.pop(key), safe=""))
            unknown = given.keys() - places["query"]
            assert not unknown, f"{name}: the document knows no parameter {unknown}"
            if body is not None:
                self._check(body, operation["requestBody"]["content"][JSON]["schema"], f"{name}: body")
            answer = await self.transport.request(
                method.upper(), address, params=given, headers=headers, json=body
            )
            self.statuses.setdefault(name, set()).add(answer.status_code)
            described = operation["responses"].get(str(answer.status_code))
            assert described is not None, f"{name}: {answer.status_code} is not documented: {answer.text}"
            kind = answer.headers.get("content-type", "")
            if not answer.content:
                assert not described.get("content"), f"{name}: an empty answer"
                return None
            assert kind in described["content"], f"{name}: {kind} is not documented"
            document = answer.json()
            self._check(document, described["content"][kind]["schema"], f"{name}: {answer.status_code}")
            return document

        return call

    def _check(self, value: Any, schema: dict[str, Any], place: str) -> None:
        whole = {**schema, "components": self.document["components"]}
        fault = next(Draft202012Validator(whole).iter_errors(value), None)
        assert fault is None, f"{place}: {fault}"

    @property
    def operations(self) -> set[str]:
        """The names of all."""
        return {
            operation["operationId"].split("_v1_")[0]
            for operations in self.document["paths"].values()
            for operation in operations.values()
        }
