"""A Dundee Corpus of a few words in its original layout, for tests."""

from __future__ import annotations

from pathlib import Path

HEADER = "WORD TEXT LINE OLEN WLEN XPOS WNUM FDUR OBLP WDLP LAUN TXFR"


def write_text(folder: Path, text: str, words: list[str], per_line: int) -> None:
    """Write the words of a text ("01"), so many on a line."""
    rows = [
        f"{word} 1 1 {1 + i // per_line} {1 + i % per_line} {i + 1} {10 * i} {len(word)} "
        f"{len(word)} 0 0 0 {i + 1} 1"
        for i, word in enumerate(words)
    ]
    (folder / f"tx{text}wrdp.dat").write_text("\n".join(rows), encoding="latin-1")


def write_fixations(
    folder: Path, name: str, words: list[str], fixations: list[tuple[int, float]]
) -> None:
    """Write the fixations of a person on a text ("sa01"): word numbers, 0 for a blink, and ms."""
    rows = [HEADER]
    for word, ms in fixations:
        blink = f"*Blink -99 -99 -99 -99 -99 -99 {ms:.0f} -99 -99 -99 -99"
        rows.append(f"{words[word - 1]} 1 1 3 3 12 {word} {ms:.0f} 1 1 -99 4" if word else blink)
    (folder / f"{name}ma1p.dat").write_text("\n".join(rows), encoding="latin-1")
