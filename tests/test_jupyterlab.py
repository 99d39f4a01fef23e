"""A notebook as people use it: opened in JupyterLab, run from top to bottom, its figures looked at.

Reference: a real JupyterLab server and a real browser (headless Chromium)."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

NOTEBOOK = "00_start_here"


@pytest.fixture
def jupyterlab(tmp_path: Path) -> Iterator[str]:
    """Serve a folder with one notebook, far from the checkout; yield its address."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{NOTEBOOK}.ipynb", as_version=4)
    parameters = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for small, written in {"n_sets = 1": "n_sets = 20", "n_draws = 2": "n_draws = 40"}.items():
        assert written in parameters.source
        parameters.source = parameters.source.replace(written, small)
    nbformat.write(notebook, tmp_path / f"{NOTEBOOK}.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"port": port, "token": "", "password": "", "root_dir": tmp_path}
    options |= {"allow_root": True, "open_browser": False, "disable_check_xsrf": True}
    command = [sys.executable, "-m", "jupyterlab", "--LabApp.expose_app_in_browser=True"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += [f"--ServerApp.{name}={value}" for name, value in options.items()]
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")
    environment = os.environ | dict.fromkeys([*folders, "JUPYTERLAB_SETTINGS_DIR"], str(tmp_path))
    environment["PSYCHLM_REPORTS"] = str(tmp_path)
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    wait_for(lambda: server.poll() is not None or answers(f"{address}/api"))
    assert server.poll() is None, (tmp_path / "server.log").read_text()
    yield address
    server.terminate()
    server.wait(timeout=60)


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except OSError:
        return False


def wait_for(holds: Callable[[], object], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.3)


@pytest.mark.slow
def test_a_notebook_runs_from_top_to_bottom_in_jupyterlab(jupyterlab, chromium, tmp_path):
    def until(expression: str) -> None:
        wait_for(lambda: chromium.says(expression))

    chromium.open(f"{jupyterlab}/lab/tree/{NOTEBOOK}.ipynb?reset")
    # a headless tab has no focus of its own
    chromium.call("Emulation.setFocusEmulationEnabled", enabled=True)
    panel = "[...jupyterapp.shell.widgets('main')].find(w => w.content?.model?.sharedModel)"
    until(f"!!window.jupyterapp?.shell && {panel}?.content.widgets.length > 10")
    chromium.says(f"jupyterapp.shell.activateById({panel}.id)")
    until(f"{panel}.sessionContext.session?.kernel?.status === 'idle'")
    run_all = {"expression": "jupyterapp.commands.execute('notebook:run-all-cells')"}
    chromium.call("Runtime.evaluate", **run_all)
    code = f"{panel}.content.model.sharedModel.cells.filter(c => c.cell_type === 'code')"
    until(f"{code}.every(c => c.execution_count !== null)")
    until(f"{panel}.sessionContext.session.kernel.status === 'idle'")
    outputs = f"{code}.flatMap(c => c.outputs)"
    errors = f"{outputs}.filter(o => o.output_type === 'error').map(o => o.evalue)"
    assert chromium.says(errors) == []
    shown = f"{outputs}.filter(o => o.data && ('image/png' in o.data))"
    figures = chromium.says(f"{shown}.map(o => Object.keys(o.data))")
    assert figures and all({"image/svg+xml", "text/csv"} <= set(kinds) for kinds in figures)
    chromium.says(f"{panel}.content.scrollToItem({panel}.content.widgets.length - 1)")
    until("[...document.querySelectorAll('.jp-OutputArea img')].some(i => i.naturalWidth > 100)")
    report = json.loads((tmp_path / "interactive" / f"{NOTEBOOK}.json").read_text())
    assert report["numbers"] and report["provenance"]["parameters"]["n_boot"] == 2000
    # a misspelt parameter: the parameters cell is compared with the notebook's file
    misspelt = "cell.setSource(cell.getSource().replace('n_boot =', 'n_bot ='))"
    chromium.says(f"(cell => {misspelt})(({code})[0])")
    chromium.call("Runtime.evaluate", **run_all)
    until(f"{errors}.length > 0")
    assert "there is no parameter n_bot; did you mean n_boot?" in chromium.says(errors)[0]
