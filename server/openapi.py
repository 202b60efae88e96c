"""The OpenAPI document of all endpoints."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from .endpoint import Endpoint, scan_endpoints

_REF = "#/components/schemas/{model}"


@cache
def described() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for made in scan_endpoints():
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", made.path)
        for method in made.methods:
            paths.setdefault(path, {})[method.lower()] = _operation(made, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "riverrun", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(made: Endpoint, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": made.summary,
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "An error, in this interface's form."},
        },
    }
    if not made.public:
        found["security"] = [{}, {"key": []}]
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if made.body is not None:
        schema = made.body.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[made.body.__name__] = schema
        reference = {"$ref": _REF.format(model=made.body.__name__)}
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        }
    return found
