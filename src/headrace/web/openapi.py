"""All that programs ask for, described in OpenAPI 3.1, made from the routes themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from headrace.web.routes import ApiRoute

_REF = "#/components/schemas/{name}"
_IN_PATH = re.compile(r"{(\w+)(?::\w+)?}")


class Problem(msgspec.Struct):
    """What went wrong."""

    error: str


def describe(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """The document."""
    types = [route.answers for route in routes] + [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    found = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        path = _IN_PATH.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, found)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version("headrace")},
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(route: ApiRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _IN_PATH.findall(route.path)
    ]
    in_query = [
        {
            "name": one.name,
            "in": "query",
            "required": one.required,
            "description": one.words,
            "schema": {"type": "string"},
        }
        for one in route.parameters
    ]
    error = {"description": "What went wrong.", "content": _content(schemas[repr(Problem)])}
    operation: dict[str, Any] = {
        "summary": route.words,
        "description": f"For the role {route.role.value}.",
        "parameters": in_path + in_query,
        "responses": {
            "200": {"description": route.words, "content": _content(schemas[repr(route.answers)], route.media)},
            "default": error,
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(schemas[repr(route.body)])}
    return operation


def _content(schema: Any, media: str = "application/json") -> dict[str, Any]:
    return {media: {"schema": schema}}
