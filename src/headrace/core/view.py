"""The base of records as people and programs see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True):
    """What users are shown of something stored. It is also a mapping, ``dict(view)``, and Pydantic knows how to
    serialise it, so that an endpoint of FastAPI may return one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can carry."""
        return msgspec.to_builtins(self, str_keys=True)  # type: ignore[no-any-return]

    def keys(self) -> Iterable[str]:
        """The names of its fields."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> Any:
        """A field as plain data."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return self.to_dict()[name]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # type: ignore[import-not-found,unused-ignore]

        plain = core_schema.plain_serializer_function_ser_schema(cls.to_dict)
        return core_schema.is_instance_schema(cls, serialization=plain)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """Without references, which Pydantic would have to resolve."""
        schema = msgspec.json.schema(cls)
        found: dict[str, Any] = _inlined(schema, schema["$defs"])
        return found


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in schema.items()}
