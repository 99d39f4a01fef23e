"""Speed as measured: ``reports/bench/*.json`` as a page, and as the README's table.

``make bench`` leaves a file a module; ``python -m psychlm.site.benchmarks`` turns them into
``reports/benchmarks.html`` and puts the table between its marks in the README, so that no figure is typed. A benchmark
stands beside what it is measured against: a *limit* (work that no program could leave out), a *peer* (another program
on the same data), or a *target* (what the project set itself at this size).
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psychlm
from psychlm import data
from psychlm.site import storage

Kind = Literal["limit", "peer", "target"]

# How a benchmark of another program is called, and what that program is called on the page.
PEERS = {
    "girth": "girth",
    "python_mirt": "Python's mirt",
    "r_mirt": "R's mirt",
    "minicons": "minicons",
}
# Benchmarks that are a limit together: DDaCLAE cannot do with less than training and looking at every example.
TOGETHER = {"ddaclae": (("plain_training", "forward_passes"), "training and forward passes")}
# Seconds that the project set itself, by module and name, and the size they are meant for (give or take a hundredth).
TARGETS: dict[tuple[str, str], tuple[float, dict[str, float]]] = {
    ("irt", "psychlm[1000x50-estimates]"): (0.1, {"n_items": 50}),
    ("irt", "psychlm[1000x1000-estimates]"): (0.5, {"n_items": 1000}),
    ("irt", "psychlm[200x10000-estimates]"): (4.0, {"n_items": 10_000}),
    ("irt", "psychlm[1000x100000-estimates]"): (60.0, {"n_items": 100_000}),
    ("curriculum", "ability"): (1.0, {"items": 550_000}),
    ("confusion", "probe"): (2.0, {"n_items": 10_000}),
    ("probes", "all_probes_with_perturbations"): (180.0, {"scale": 1.0}),
}
# What a benchmark's parameters stand for, where they do not say so themselves.
SETTINGS = {
    "None": "summed",
    "pimentel-meister": "corrected",
    "30-6-10": "30 models",
    "1000-30-50": "1000 models",
}
COLOURS = {"ours": "#0072B2", "limit": "#222222", "peer": "#D55E00", "target": "#009E73"}
MARKS = {"limit": "|", "peer": "D", "target": "x"}
_BETWEEN = re.compile(r"(<!-- speed -->\n).*?(<!-- /speed -->)", flags=re.DOTALL)
_NAME = re.compile(r"(?:test_)?(?P<base>.+?)(?:\[(?P<setting>.*)\])?")
_ALREADY_SHOWN = ("name", "seconds", "rounds", "processor", "target_seconds")


@dataclass(frozen=True)
class Rival:
    """What a benchmark stands beside."""

    kind: Kind
    name: str
    seconds: float


@dataclass(frozen=True)
class Benchmark:
    """One measured piece of work."""

    name: str  # as people read it
    seconds: float
    rivals: tuple[Rival, ...]
    noted: str  # sizes, memory and whatever else the benchmark left

    def times(self, rival: Rival) -> float:
        """Return how many times as fast as a rival this is; a limit allows 1 at most."""
        return rival.seconds / self.seconds


@dataclass(frozen=True)
class Module:
    """The benchmarks of one module, and the machine they ran on."""

    name: str
    date: str
    machine: str
    benchmarks: tuple[Benchmark, ...]


def read(folder: Path) -> tuple[list[Module], dict[str, str]]:
    """Read what ``make bench`` left in a folder.

    Returns
    -------
    modules : list of Module
        Sorted by name.
    broken : dict
        Of each file that is none of its kind: what is wrong with it.
    """
    modules, broken = [], {}
    for file in sorted(folder.glob("[!.]*.json")):
        try:
            modules.append(_module(file.stem, json.loads(file.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            broken[file.name] = str(error) or type(error).__name__
    return modules, broken


def _module(name: str, content: Any) -> Module:
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list):
        raise ValueError("it has no list `benchmarks`; run `make bench` anew")
    for row in content["benchmarks"]:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise ValueError("a benchmark in it has no `name`; run `make bench` anew")
        if not _is_positive(row.get("seconds")):
            raise ValueError(
                f"`seconds` of {row['name']} is {row.get('seconds')!r}, not a time; run `make bench` anew"
            )
    machine = content.get("machine")
    said = machine if isinstance(machine, dict) else {}
    return Module(
        name, str(content.get("date", "")), _machine(said), _paired(name, content["benchmarks"])
    )


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _machine(said: dict[str, Any]) -> str:
    cores = f"{said['cores']} cores" if said.get("cores") else None
    python, torch = (
        f"{name} {said[key]}" if said.get(key) else None
        for name, key in (("Python", "python"), ("torch", "torch"))
    )
    parts = [
        said.get("processor"),
        cores,
        said.get("accelerator"),
        said.get("system"),
        python,
        torch,
    ]
    return ", ".join(str(part) for part in parts if part) or "a machine that was not described"


def _parts(name: str) -> tuple[str, str]:
    found = _NAME.fullmatch(name)
    return (found["base"], found["setting"] or "") if found else (name, "")


def _paired(module: str, rows: Sequence[dict[str, Any]]) -> tuple[Benchmark, ...]:
    """Set every benchmark beside its limit and peers; one that stands beside nothing is shown by itself."""
    ours, rivals = [], []
    for row in rows:
        base, setting = _parts(row["name"])
        peer = next((key for key in PEERS if base == key or base.endswith(f"_{key}")), None)
        if base.endswith("_limit"):
            rivals.append(
                (
                    base.removesuffix("_limit"),
                    setting,
                    row,
                    Rival("limit", "bare limit", row["seconds"]),
                )
            )
        elif peer:
            of = base.removesuffix(peer).rstrip("_") or "psychlm"
            rivals.append((of, setting, row, Rival("peer", PEERS[peer], row["seconds"])))
        else:
            ours.append((base, setting, row))
    seconds = {base: row["seconds"] for base, setting, row in ours if not setting}
    used = {
        part
        for whole, (parts, _) in TOGETHER.items()
        if {whole, *parts} <= seconds.keys()
        for part in parts
    }
    found, matched = [], set()
    for base, setting, row in ours:
        here = [
            i for i, rival in enumerate(rivals) if rival[0] == base and _same(rival[1], setting)
        ]
        matched.update(here)
        if base in used:
            continue
        beside = [rivals[i][3] for i in here] + _together(base, seconds) + _noted_rivals(row)
        beside += _target(module, base, setting, row)
        found.append(
            Benchmark(_readable(base, setting), row["seconds"], tuple(beside), _noted(row))
        )
    alone = [rival for i, rival in enumerate(rivals) if i not in matched]
    return (
        *found,
        *(
            Benchmark(_readable(*_parts(row["name"])), row["seconds"], (), _noted(row))
            for _, _, row, _ in alone
        ),
    )


def _same(rival: str, setting: str) -> bool:
    """Say whether a rival did the same: peers give estimates, so that those with standard errors have none."""
    return rival in ("", setting) or setting == f"{rival}-estimates"


def _together(base: str, seconds: dict[str, float]) -> list[Rival]:
    parts, name = TOGETHER.get(base, ((), ""))
    if not parts or not set(parts) <= seconds.keys():
        return []
    return [Rival("limit", name, sum(seconds[part] for part in parts))]


def _noted_rivals(row: dict[str, Any]) -> list[Rival]:
    """Return the rivals that a benchmark timed itself: ``"loop, wall s"``, or the time of one of many fits."""
    found = [
        Rival("peer", key.removesuffix(", wall s"), float(value))
        for key, value in row.items()
        if key.endswith(", wall s") and _is_positive(value)
    ]
    if _is_positive(row.get("seconds_a_bam_fit")) and _is_positive(row.get("fits")):
        found.append(Rival("peer", "bam (mgcv)", row["seconds_a_bam_fit"] * row["fits"]))
    if _is_positive(row.get("target_seconds")):
        found.append(Rival("target", "target", float(row["target_seconds"])))
    return found


def _target(module: str, base: str, setting: str, row: dict[str, Any]) -> list[Rival]:
    name = f"{base}[{setting}]" if setting else base
    seconds, size = TARGETS.get((module, name)) or TARGETS.get((module, base)) or (0.0, {})
    meant = bool(size) and all(
        _is_positive(row.get(key)) and row[key] >= 0.99 * value for key, value in size.items()
    )
    return [Rival("target", "target", seconds)] if meant else []


def _readable(base: str, setting: str) -> str:
    words = base.replace("_", " ")
    setting = re.sub(r"(?<=\d)x(?=\d)", " × ", SETTINGS.get(setting, setting)).replace("-", " ")
    setting = re.sub(r"\d{4,}", lambda found: f"{int(found[0]):,}", setting)
    return (
        setting
        if words == "psychlm" and setting
        else ", ".join(part for part in (words, setting) if part)
    )


def _noted(row: dict[str, Any]) -> str:
    shown = {
        key.replace("_", " "): value
        for key, value in row.items()
        if key not in _ALREADY_SHOWN
        and value is not None
        and not key.startswith("times")
        and ", wall s" not in key
    }
    return ", ".join(f"{key} {_figure(value)}" for key, value in shown.items())


def _figure(value: Any) -> str:
    """Write a number with the digits that matter: ``"0.0216"``, ``"41.8"``, ``"550,000"``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def write_page(reports: Path) -> Path | None:
    """Write ``benchmarks.html`` into the folder of reports from the files under its ``bench/``; None without any."""
    from markupsafe import Markup

    from psychlm.site import render

    modules, broken = read(reports / "bench")
    if not modules and not broken:
        return None
    page = render.environment(reports).get_template("benchmarks.html.j2")
    drawn = [
        (module, Markup(_uri(draw(module))), describe(module))
        for module in modules
        if module.benchmarks
    ]
    empty = [module.name for module in modules if not module.benchmarks]
    text = page.render(drawn=drawn, empty=empty, broken=broken, figure=_figure)
    storage.write(reports / "benchmarks.html", text)
    return reports / "benchmarks.html"


def draw(module: Module) -> bytes:
    """Draw a module's benchmarks against their rivals, seconds on a logarithmic axis; return the SVG."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = module.benchmarks
    style = Path(psychlm.__file__).with_name("psychlm.mplstyle")
    with plt.style.context(style), mpl.rc_context({"svg.hashsalt": "psychlm"}):
        figure = Figure(figsize=(8.2, 0.9 + 0.36 * len(rows)))
        canvas, ax = FigureCanvasSVG(figure), figure.add_subplot()
        for at, row in enumerate(rows):
            times = [row.seconds, *(rival.seconds for rival in row.rivals)]
            ax.plot([min(times), max(times)], [at, at], color="#bbbbbb", linewidth=1.2, zorder=1)
            for rival in row.rivals:
                ax.plot(
                    rival.seconds,
                    at,
                    MARKS[rival.kind],
                    color=COLOURS[rival.kind],
                    ms=8,
                    mew=1.8,
                    mfc="none",
                )
            ax.plot(row.seconds, at, "o", color=COLOURS["ours"], ms=7)
            said = " · ".join(f"{_figure(row.times(rival))} × {rival.name}" for rival in row.rivals)
            ax.annotate(
                said,
                (1.02, at),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8.5,
                color="#444444",
            )
        ax.set(
            xscale="log",
            yticks=range(len(rows)),
            yticklabels=[row.name for row in rows],
            xlabel="seconds",
        )
        _plain_ticks(ax)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
        _legend(ax, rows)
        content = io.BytesIO()
        canvas.print_svg(content, metadata={"Date": None})
    return content.getvalue()


def _plain_ticks(ax: Any) -> None:
    """Write seconds as people do (0.1, 1, 10), and between them where less than two decades are shown."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _legend(ax: Any, rows: Sequence[Benchmark]) -> None:
    kinds = {rival.kind for row in rows for rival in row.rivals}
    ax.plot([], [], "o", color=COLOURS["ours"], ms=7, label="psychlm")
    for kind in [kind for kind in MARKS if kind in kinds]:
        ax.plot([], [], MARKS[kind], color=COLOURS[kind], ms=8, mew=1.8, mfc="none", label=kind)
    if kinds:
        ax.figure.legend(loc="outside upper left", ncols=4, fontsize=9)


def describe(module: Module) -> str:
    """Say in words what the figure of a module shows, for those who do not see it."""
    told = []
    for row in module.benchmarks:
        beside = ", ".join(f"{rival.name} {_figure(rival.seconds)} s" for rival in row.rivals)
        told.append(f"{row.name} {_figure(row.seconds)} s" + (f" ({beside})" if beside else ""))
    return f"Seconds of the benchmarks of {module.name}: " + "; ".join(told) + "."


def _uri(svg: bytes) -> str:
    from psychlm.site import render

    return render.image_uri(svg.decode(), "image/svg+xml")


def speed_table(root: Path) -> str:
    """Return the README's table of speed: of each module and each of its rivals, the least favourable benchmark.

    Targets stand only where a module has no limit and no peer; a module without any shows its slowest benchmark.

    Raises
    ------
    ValueError
        If a file is malformed: a README does not go on without a module in silence.
    """
    modules, broken = read(root / "reports" / "bench")
    if broken:
        raise ValueError("; ".join(f"reports/bench/{name}: {why}" for name, why in broken.items()))
    lines = [
        "| module | benchmark | ours | beside | its time | times as fast | machine |",
        "| --- | --- | ---: | --- | ---: | ---: | --- |",
    ]
    for module in modules:
        machine = ", ".join(module.machine.split(", ")[:2])
        for row, rival in _telling(module):
            beside = (
                [rival.name, f"{_figure(rival.seconds)} s", _figure(row.times(rival))]
                if rival
                else ["–"] * 3
            )
            cells = [
                f"`{module.name}`",
                row.name,
                f"{_figure(row.seconds)} s",
                *beside,
                f"{machine}, {module.date}",
            ]
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _telling(module: Module) -> list[tuple[Benchmark, Rival | None]]:
    pairs = [(row, rival) for row in module.benchmarks for rival in row.rivals]
    pairs = [pair for pair in pairs if pair[1].kind != "target"] or pairs
    worst: dict[str, tuple[Benchmark, Rival | None]] = {}
    for row, rival in sorted(pairs, key=lambda pair: pair[0].times(pair[1])):
        worst.setdefault(rival.name, (row, rival))
    if worst or not module.benchmarks:
        return list(worst.values())
    return [(max(module.benchmarks, key=lambda row: row.seconds), None)]


def write_table(root: Path) -> bool:
    """Put the table of speed between its marks in the README, if it has them; say whether that changed it."""
    readme = root / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = _BETWEEN.sub(lambda marks: marks[1] + speed_table(root) + marks[2], before)
    if after != before:
        storage.write(readme, after)
    return after != before


if __name__ == "__main__":
    write_page(data.root() / "reports")
    write_table(data.root())
