"""What `psychlm doctor` says. Reference: what the machine's own programs and modules answer."""

from __future__ import annotations

import shutil

from click.testing import CliRunner

from psychlm import cli, doctor


def parts(monkeypatch=None, *only: str) -> dict[str, doctor.Part]:
    """Examine all parts, or only some: R, once started without its PATH, starts no more in this process."""
    if only:
        monkeypatch.setattr(doctor, "_PARTS", {name: doctor._PARTS[name] for name in only})
    return {part.name: part for part in doctor.examine()}


def test_every_part_is_found_or_says_how_to_get_it() -> None:
    found = parts()
    assert set(found) == set(doctor._PARTS)
    assert all(part.what and part.adds for part in found.values())
    assert found["R"].found == (shutil.which("Rscript") is not None)


def test_a_missing_program_is_named_with_the_way_to_it(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    found = parts(monkeypatch, "R", "Chromium")
    assert not found["R"].found and "apt-get install r-base-core" in found["R"].what
    assert not found["Chromium"].found and "apt-get install chromium" in found["Chromium"].what


def test_missing_and_corrupt_data_are_told_apart(monkeypatch) -> None:
    rows = [
        {"name": "a", "place": "", "state": "can be fetched"},
        {"name": "b", "place": "", "state": "corrupt"},
    ]
    monkeypatch.setattr(doctor.data, "state", lambda: iter(rows[:1]))
    assert "psychlm data pull" in parts(monkeypatch, "data")["data"].what
    rows[1]["place"] = "data/raw"
    monkeypatch.setattr(doctor.data, "state", lambda: iter(rows))
    assert "['b'] have the wrong checksum" in parts(monkeypatch, "data")["data"].what


def test_the_command_ends_well_whatever_is_missing(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(cli.main, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "WordNet" in done.output and "optional parts are here" in done.output
