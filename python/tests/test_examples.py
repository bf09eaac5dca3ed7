"""Tests of the examples, called as a worker calls them."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tickfleet import ToolError, testing
from tickfleet._tool import of


def load(name: str) -> ModuleType:
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_write_file_writes_only_into_the_tenants_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_file = load("workspace_tools").write_file
    said = testing.call(write_file, {"path": "notes/today.md", "content": "Übung"})
    assert said == {"path": "notes/today.md", "bytes": 6}
    workspace = tmp_path / "data/acme/workspace"
    assert (workspace / "notes/today.md").read_text() == "Übung"
    for path in ("../x", "/etc/passwd", "a//b", ".hidden", "a/../../b"):
        with pytest.raises(ToolError, match="is no path here"):
            testing.call(write_file, {"path": path, "content": "x"})
    (workspace / "out").symlink_to(tmp_path)
    with pytest.raises(ToolError, match="leads out"):
        testing.call(write_file, {"path": "out/x", "content": "x"})
    assert not (tmp_path / "x").exists()


def test_the_sales_report_adds_up_and_names_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    report = load("sales_tools").sales_report_tool
    none = {"month": "2026-11", "region": None, "has_data": False, "sales": 0, "total_cents": 0}
    assert testing.call(report, {"month": "2026-11"}) == none
    (tmp_path / "data/acme").mkdir(parents=True)
    sales = [
        {"date": "2026-11-02", "region": "north", "cents": 1299},
        {"date": "2026-11-30", "region": "south", "cents": 1},
        {"date": "2026-10-02", "region": "north", "cents": 7},
    ]
    (tmp_path / "data/acme/sales.json").write_text(json.dumps(sales))
    assert testing.call(report, {"month": "2026-11"})["total_cents"] == 1300
    assert testing.call(report, {"month": "2026-11", "region": "north"})["sales"] == 1
    properties = of(report).signature.input_schema["properties"]
    assert properties["region"]["description"] == "One region alone; all of them otherwise."


def test_the_converters_descriptions_come_from_its_param_lines():
    convert = load("currency_tools").convert
    properties = of(convert).signature.input_schema["properties"]
    assert properties["amount"] == {"description": "How much, in units of the source currency.", "type": "number"}
    assert properties["target"]["description"] == "The currency to convert it into."
    said = testing.call(convert, {"amount": 10, "source": "USD", "target": "EUR"})
    assert said == {"amount": 8.5, "currency": "EUR"}
