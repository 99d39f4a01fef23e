"""Fixtures; and absent data skip a test with a reason locally, and fail it in CI."""

import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Workers share the cores: one thread each, set before torch and BLAS start.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

import numpy as np
import pytest
from browser import CHROMIUM, Chromium
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
SHARE = ROOT.parent / "shared"
IN_CI = bool(os.environ.get("PSYCHLM_REQUIRE_DATA"))

# How many examples a property is tried on: each time the same few, so that a run fails for what
# was changed; `pytest --hypothesis-profile=many` tries others (nightly).
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
options = {"deadline": None, "suppress_health_check": checks}
settings.register_profile("few", max_examples=20, derandomize=True, **options)
settings.register_profile("many", max_examples=300, **options)
settings.load_profile("few")

# Downloads fail at once, but those from servers of the tests themselves.
for variable in ("http_proxy", "https_proxy"):
    os.environ[variable] = os.environ[variable.upper()] = "http://127.0.0.1:9"
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist keep the order of modules, which it would sort by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that have most slow tests, so that none is left for one core alone."""
    n_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -n_slow[item.path])


def absent(what: str, why: str = f"looked in {SHARE.name}/ beside the checkout") -> None:
    """Skip the running test, or fail it where PSYCHLM_REQUIRE_DATA is set (as in CI)."""
    reason = f"{what} is not here ({why})"
    if IN_CI:
        pytest.fail(f"{reason}, and PSYCHLM_REQUIRE_DATA is set")
    pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turn the lack of R, or of a dataset, that a test needs into a skip with its name."""
    try:
        return (yield)
    except Exception as error:
        lack = type(error).__name__
        if lack == "RMissingError" and item.get_closest_marker("needs_r"):
            absent("R with mgcv", str(error))
        if lack != "DataMissingError" or not item.get_closest_marker("needs_share"):
            raise
        dataset = str(error).split(" ")[0].strip("'")
        absent(f"dataset {dataset}", str(error))


pytest_runtest_setup = pytest_runtest_call  # fixtures, too, may lack them


def shared(part: str) -> Path:
    """Return a file or folder of the lab share beside the checkout, or skip the running test."""
    if not (SHARE / part).exists():
        absent(f"{part} of the share")
    return SHARE / part


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Return the folder of the committed results of R's mirt, ltm and psych."""
    return ROOT / "tests" / "reference"


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no dataset be had, as on a machine without share and network."""
    from psychlm import data

    def missing(name: str) -> Path:
        raise data.DataMissingError(name)

    monkeypatch.setattr(data, "path", missing)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let results be kept in a folder of the test's own; return it."""
    monkeypatch.setenv("PSYCHLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: small problems gain nothing from a second, which delays parallel tests."""
    import torch  # noqa: F401 - so that its threads are set

    from psychlm import device

    with device.one_thread():
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator whose seed is fixed, so that a failure can be repeated."""
    return np.random.default_rng(20211108)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a checkpoint of BERT's kind."""
    import tiny_models

    return Path(tiny_models.save(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Yield a tab of a headless Chromium; skip without one, or fail where CI requires it."""
    if CHROMIUM is None:
        absent("Chromium", "apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(Path(profile))
        yield browser
        browser.close()
