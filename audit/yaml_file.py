"""Reads a YAML file into a pydantic model; errors name file, line, field and fix."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class InputError(ValueError):
    """A file or a value that cannot be used; the message says which, where, and what to do."""


class Strict(BaseModel):
    """The base of every model that people write by hand: frozen, and no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


def load(path: Path, model: type[Model]) -> Model:
    """The validated content of a YAML file.

    Raises:
        InputError: if the file is missing, not UTF-8, not YAML, has a key twice, or does not fit
            the model.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a YAML file") from None
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return parse(text, path, model)


def parse(text: str, path: Path, model: type[Model]) -> Model:
    """The validated content of YAML text; ``path`` names it in errors.

    Raises:
        InputError: if it is not YAML, has a key twice, or does not fit the model.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{path}{where}: not valid YAML: {problem}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be read; flatten it") from None
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # a 13th month, 5000 digits, !!bool x: PyYAML lets its converters raise what they will
        raise InputError(f"{path}: holds a value that cannot be read: {error}") from None
    if root is None or not isinstance(data, dict):
        raise InputError(f"{path}: expected keys and values, got {type(data).__name__}")
    _refuse_duplicates(path, root, set())
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        keys = _data_path(data, first["loc"])
        field, line = ".".join(map(str, keys)), _line(root, keys)
        hint = _hint(model, first)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise InputError(f"{path}:{line}: {field or 'file'}: {hint}{more}") from None


def _data_path(data: Any, loc: tuple[Any, ...]) -> list[Any]:
    """The part of a pydantic location that names keys of the file, without its union tags."""
    path: list[Any] = []
    here = data
    for i, part in enumerate(loc):
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_list or (isinstance(here, dict) and part in here):
            here = here[part]
            path.append(part)
        elif i == len(loc) - 1 and isinstance(here, dict):
            path.append(part)  # a missing key: name it, the line is its parent's
    return path


def _line(root: yaml.Node, path: list[Any]) -> int:
    node = root
    line = root.start_mark.line
    for part in path:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    node, line = value, key.start_mark.line
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _hint(model: type[BaseModel], error: Any) -> str:
    kind, loc = error["type"], error["loc"]
    if kind == "missing":
        return "this key is missing; add it"
    if kind == "extra_forbidden":
        known = _known_keys(model, loc)
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        said = f"; did you mean {close[0]!r}?" if close else ""
        listed = f" (known here: {', '.join(known)})" if known and not close else ""
        return f"unknown key{said or listed or '; remove it'}"
    message = str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input")
    shown = "" if isinstance(given, dict | list) else f", got {given!r}"
    return f"{message[0].lower()}{message[1:]}{shown}"


def _known_keys(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The keys that the model at this location knows: found by walking the model's JSON Schema."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for part in loc[:-1]:
        nodes = [n for node in nodes for n in _step(node, part, definitions)]
    keys: list[str] = []
    for node in nodes:
        keys += [k for k in _resolve(node, definitions).get("properties", {}) if k not in keys]
    return keys


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[-1]]
    return node


def _step(node: dict[str, Any], part: Any, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    node = _resolve(node, definitions)
    options = node.get("oneOf") or node.get("anyOf")
    if options:
        mapping = node.get("discriminator", {}).get("mapping", {})
        if part in mapping:
            return [_resolve({"$ref": mapping[part]}, definitions)]
        return [n for option in options for n in _step(option, part, definitions)]
    if isinstance(part, int):
        return [node["items"]] if "items" in node else []
    child = node.get("properties", {}).get(part)
    return [child] if child else []


def _refuse_duplicates(path: Path, node: yaml.Node, looked: set[int]) -> None:
    if id(node) in looked:  # an alias: looked at again and again, a small file takes for ever
        return
    looked.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise InputError(f"{path}:{line}: {key.value}: key given twice; keep one")
            seen.add(key.value)
            _refuse_duplicates(path, value, looked)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_duplicates(path, item, looked)
