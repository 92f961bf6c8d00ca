"""The shipped JSON Schema is up to date, accepts what we write and refuses what is broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from reports import schema
from reports.record import to_json
from tests.reports import sample_records

VALIDATOR = Draft202012Validator(json.loads(schema.PATH.read_text(encoding="utf-8")))


def test_the_shipped_file_is_up_to_date():
    assert schema.main(["--check"]) == 0


def test_a_stale_file_is_noticed(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "record.schema.json"
    stale.write_text("{}")
    monkeypatch.setattr(schema, "PATH", stale)
    assert schema.main(["--check"]) == 1
    assert "python -m reports.schema --write" in capsys.readouterr().err
    assert schema.main(["--write"]) == 0
    assert schema.main(["--check"]) == 0
    assert schema.main(["--chek"]) == schema.main([]) == 2


def test_it_is_a_valid_schema():
    Draft202012Validator.check_schema(schema.schema())


@pytest.mark.parametrize("build", sample_records.ALL, ids=lambda b: b.__name__)
def test_every_record_that_we_write_is_valid(build):
    errors = list(VALIDATOR.iter_errors(json.loads(to_json(build()))))
    assert not errors, errors[0]


def _set(path: str, value: object):
    def change(data: dict) -> None:
        *way, last = [int(p) if p.isdigit() else p for p in path.split("/")]
        for step in way:
            data = data[step]
        data[last] = value

    return change


def _drop(path: str):
    def change(data: dict) -> None:
        *way, last = path.split("/")
        for step in way:
            data = data[int(step) if step.isdigit() else step]
        del data[last]

    return change


@pytest.mark.parametrize(
    "breakage",
    [
        _set("schema_version", "2.0"),
        _drop("schema_version"),
        _drop("subject"),
        _drop("attacks/0/roc"),
        _set("verdict/outcome", "perhaps"),
        _set("attacks/0/metrics/0/interval/low", "small"),
        _set("attacks/0/metrics/0/interval/n", 1.5),
        _set("attacks/0/members", "many"),
        _set("findings/0/extra", 1),
        _set("policy/0/waivable", "yes"),
        _set("claims", {}),
        _set("findings/0/values", {"a": [1]}),
    ],
)
def test_broken_records_are_refused(breakage):
    data = json.loads(to_json(sample_records.leaky()))
    breakage(data)
    assert not VALIDATOR.is_valid(data)


def test_the_file_ships_beside_the_code():
    assert Path(schema.__file__).with_name("record.schema.json").exists()
