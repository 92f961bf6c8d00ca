"""Every mistake in a YAML file is answered with the file, the line, the field and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from audit.yaml_file import InputError, Strict, load


class Apple(Strict):
    kind: Literal["apple"]
    colour: str


class Pear(Strict):
    kind: Literal["pear"]
    weight: float = Field(gt=0)


class Basket(Strict):
    owner: str
    fruits: list[Annotated[Apple | Pear, Field(discriminator="kind")]] = []
    limit: int = Field(default=3, ge=1)


def message(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "basket.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        load(path, Basket)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_a_good_file_becomes_the_model(tmp_path: Path) -> None:
    path = tmp_path / "basket.yaml"
    path.write_text("owner: a\nfruits:\n  - {kind: pear, weight: 2}\n")
    assert load(path, Basket) == Basket(owner="a", fruits=[Pear(kind="pear", weight=2.0)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "basket.yaml: expected keys and values"),
        ("- a\n- b\n", "basket.yaml: expected keys and values"),
        ("owner: a\nowner: b\n", "basket.yaml:2: owner: key given twice"),
        ("owner: a\nfruits: [\n", "basket.yaml:3: not valid YAML"),
        ("fruits: []\n", "basket.yaml:1: owner: this key is missing"),
        ("owner: a\nlimmit: 4\n", "basket.yaml:2: limmit: unknown key; did you mean 'limit'?"),
        ("owner: a\nlimit: many\n", "basket.yaml:2: limit: input should be a valid integer"),
        ("owner: a\nlimit: 0\n", "basket.yaml:2: limit: input should be greater than or equal"),
        (
            "owner: a\nfruits:\n  - kind: apple\n    colour: red\n  - kind: pear\n    weight: -1\n",
            "basket.yaml:6: fruits.1.weight: input should be greater than 0, got -1",
        ),
        (
            "owner: a\nfruits:\n  - kind: pear\n    wheight: 1\n    weight: 1\n",
            "basket.yaml:4: fruits.0.wheight: unknown key; did you mean 'weight'?",
        ),
        ("owner: a\nfruits:\n  - kind: plum\n", "basket.yaml:3: fruits.0"),
        ("owner: !!python/object/apply:os.system ['true']\n", "basket.yaml:1: not valid YAML"),
        (b"owner: \xff\xfe\n", "basket.yaml: cannot be read as UTF-8"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, text: str | bytes, expected: str
) -> None:
    assert expected in message(tmp_path, text)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file"):
        load(tmp_path / "none.yaml", Basket)
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path, Basket)


def test_a_file_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in message(tmp_path, "owner: " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize(
    "text",
    [
        "owner: 2024-13-45\n",
        "owner: !!bool x\n",
        "owner: !!timestamp x\n",
        f"limit: {'9' * 5000}\n",
    ],
)
def test_a_value_that_yaml_cannot_convert_is_an_input_error(tmp_path: Path, text: str) -> None:
    assert "holds a value that cannot be read" in message(tmp_path, text)


def test_aliases_of_aliases_and_an_alias_of_itself_end_quickly(tmp_path: Path) -> None:
    steps = ["owner: a", "b0: &b0 [x, x]"]
    steps += [f"b{i}: &b{i} [*b{i - 1}, *b{i - 1}, *b{i - 1}]" for i in range(1, 60)]
    assert "unknown key" in message(tmp_path, "\n".join(steps))  # 3^60 items, looked at once each
    assert "unknown key" in message(tmp_path, "owner: a\nb: &b [*b]\n")
