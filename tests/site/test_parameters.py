"""A notebook is a function of its parameters: other values run, and senseless ones are refused.

Reference: ``tests/parameter_values.yaml`` for the values; the parameters cells for their names. The
run of each notebook in test_notebooks_in_git.py takes one of the other values, another each day;
``-m exhaustive`` tries all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import IPython
import matplotlib.pyplot as plt
import pytest
import yaml
from conftest import ROOT, absent

from psychlm import report, site
from psychlm.site import collection

NOTEBOOKS = {notebook.name: notebook for notebook in collection.find(ROOT)}
VALUES = yaml.safe_load((ROOT / "tests" / "parameter_values.yaml").read_text(encoding="utf-8"))
SMOKE = yaml.safe_load((ROOT / "tests" / "smoke.yaml").read_text(encoding="utf-8"))
OTHERS = {
    name: {parameter: one["other"] for parameter, one in values.items() if "other" in one}
    for name, values in VALUES.items()
}
WRONG_TYPE = {int: "many", float: "many", bool: "perhaps", str: 3, list: "a", dict: "a"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_parameter_has_another_value(name: str) -> None:
    assert list(VALUES[name]) == list(NOTEBOOKS[name].parameters)
    for parameter, values in VALUES[name].items():
        assert set(values) <= {"other", "untried", "refused", "minutes"}, parameter
        tried = "other" in values
        assert tried != bool(values.get("untried")), f"{parameter}: a value or why not"
        smoke = (SMOKE.get(name) or {}).get(parameter, NOTEBOOKS[name].parameters[parameter])
        assert values.get("other") != smoke, f"{parameter}: the same value as in smoke.yaml"


def begin(name: str, **given: Any) -> None:
    """Run the cells of a notebook up to report.begin, with values given as papermill does."""
    parameters, *others = NOTEBOOKS[name].code
    injected = "# Parameters\n" + "".join(f"{key} = {value!r}\n" for key, value in given.items())
    session = type("Session", (), {"user_ns": {"In": [""]}})()
    with pytest.MonkeyPatch.context() as patch, plt.rc_context():
        patch.setattr(IPython, "get_ipython", lambda: session)
        for source in [parameters, injected, *others]:
            session.user_ns["In"].append(source)
            exec(compile(source, name, "exec"), session.user_ns)
            if "report.begin(" in source:
                return


@pytest.mark.parametrize("name", VALUES)
def test_a_senseless_value_is_refused_in_one_line_before_anything_is_computed(name: str) -> None:
    defaults = NOTEBOOKS[name].parameters
    for parameter, values in VALUES[name].items():
        refused = list(values.get("refused", []))
        if defaults[parameter] is not None:
            refused += [WRONG_TYPE[type(defaults[parameter])], None]
        for value in refused:
            with pytest.raises(ValueError, match=rf"^{name}: {parameter}=") as caught:
                begin(name, **{parameter: value})
            assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"^{name}: there is no parameter not_a_parameter"):
        begin(name, not_a_parameter=1)
    begin(name, **OTHERS[name])
    assert report._current is not None and report._current.notebook == name


PAPER = collection.run_parameters(ROOT, list(NOTEBOOKS.values()), "paper")


@pytest.mark.parametrize("name", [name for name, values in PAPER.items() if values])
def test_the_parameters_of_the_papers_are_values_that_a_notebook_takes(name: str) -> None:
    """run_parameters refuses names and types, report.begin what breaks the notebook's rules."""
    begin(name, **PAPER[name])
    assert report._current is not None
    assert report._current.parameters == NOTEBOOKS[name].parameters | PAPER[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "parameter"), [(n, p) for n in OTHERS for p in OTHERS[n]])
def test_a_notebook_runs_with_another_value(name: str, parameter: str, tmp_path: Path) -> None:
    given = {parameter: OTHERS[name][parameter]}
    options = {"profile": "smoke", "root": ROOT, "reports": tmp_path}
    (outcome,) = site.run([name], parameters=given, **options)
    if outcome.status == "left out":
        absent(f"{name}: {outcome.error}")
    assert outcome.status == "done", f"cell {outcome.cell}: {outcome.error}"
    content = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    expected = NOTEBOOKS[name].parameters | (SMOKE.get(name) or {}) | given
    assert content["provenance"]["parameters"] == expected
