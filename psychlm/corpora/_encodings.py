"""How the letters of a text file are encoded: told by its bytes, or asked of the user."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from pathlib import Path
from unicodedata import name as unicode_name

from psychlm.frames import FrameError

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OLD_EXCEL = bytes.fromhex("d0cf11e0")  # programs such as Data Viewer write text as .xls
WESTERN = ["cp1252", "latin-1"]
OTHER_ENCODINGS = "cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 gb18030 big5 shift_jis euc_kr".split()
# what words of western languages do not have: letters of Icelandic, signs between letters, controls
STRANGE = re.compile("[ðþýÐÞÝ\x80-\x9f]|[^\\W\\d_][¡-§©¬®¯±-³µ¶¹¼-¿][^\\W\\d_]")


def decode(
    path: str | Path, encoding: str | None = None, raw: bytes | None = None
) -> tuple[str, str]:
    """Return the text of a file, or of bytes that were read, and the name of its encoding.

    A byte order mark decides; else UTF-8 where all bytes are, UTF-16 where every second byte is
    zero, and Windows-1252 or Latin-1. Files that are none of these are a :class:`FrameError`.

    >>> decode("a.txt", raw="Müller".encode("cp1252"))
    ('Müller', 'Windows-1252')
    """
    raw = Path(path).read_bytes() if raw is None else raw
    if raw.startswith(OLD_EXCEL):
        raise FrameError(f"{path} is a file of an old Excel, which is not read; save it as xlsx")
    advice = "save it as UTF-8, or name its encoding: encoding='cp1251'"
    told = encoding or next((n for mark, n in BYTE_ORDER_MARKS.items() if raw.startswith(mark)), "")
    # UTF-16 without its mark: letters of ASCII leave every second byte zero
    n_zero = {"utf-16-be": raw[::2].count(0), "utf-16-le": raw[1::2].count(0)}
    if not told and max(n_zero.values()) > 0.15 * len(raw):
        told = max(n_zero, key=lambda name: n_zero[name])
    for name in [told] if told else ["utf-8", *WESTERN]:
        try:
            text = raw.decode(name).removeprefix("\ufeff")
        except (UnicodeError, LookupError) as error:
            if told:
                raise FrameError(f"{path} is not encoded as {name} ({error}); {advice}") from None
            # a file of UTF-8 in which a few bytes are wrong is no file of another encoding
            replaced = raw.decode(errors="replace")
            n_wrong = replaced.count("\ufffd")
            if name == "utf-8" and sum(letter > "\x7f" for letter in replaced) > 2 * n_wrong:
                line = replaced[: replaced.index("\ufffd")].count("\n") + 1
                said = f"{path} is UTF-8 but for {n_wrong} characters, the first in line {line}"
                raise FrameError(f"{said}; {advice}") from None
            continue
        if "\0" in text:
            raise FrameError(f"{path} cannot be read as text: it holds zero bytes; {advice}")
        if not told and name in WESTERN:
            _check_western(text, name, raw, path)
        known = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}
        return text, encoding or known.get(name, name.removesuffix("-sig").upper())
    raise AssertionError("every byte is a letter of Latin-1")


def _check_western(text: str, name: str, raw: bytes, path: str | Path) -> None:
    """Refuse a file whose words no western language writes: its bytes are other letters.

    So are words mostly of letters beyond ASCII (Cyrillic, Greek or Chinese), letters of Icelandic
    (in cp1254 those of Turkish), and signs between letters (in cp1250 letters of Polish).
    """
    words = [
        word for word in re.findall(r"[^\s,;|\"]*[^\x00-\x7f][^\s,;|\"]*", text) if len(word) > 1
    ]
    beyond_ascii = [sum(letter > "\x7f" for letter in word if letter.isalpha()) for word in words]
    n_letters = [sum(letter.isalpha() for letter in word) for word in words]
    other_script = sum(beyond_ascii) > 0.75 * sum(n_letters) > 1
    strange = [word for word in words if other_script or STRANGE.search(word)]
    if not strange:
        return
    word = max(strange[:20], key=len)
    readings: dict[str, str] = {}
    for other in OTHER_ENCODINGS:
        with suppress(UnicodeError):
            raw.decode(other)
            reading = word.encode(name).decode(other)
            scripts = {unicode_name(letter, "").split(" ")[0] for letter in reading}
            of_one_case = reading in (reading.lower(), reading.upper(), reading.capitalize())
            if reading.isalpha() and len(scripts) == 1 and of_one_case:
                readings.setdefault(reading, f"encoding={other!r} reads {reading!r}")
    readings[word] = f"encoding={name!r} reads it as it stands here"
    raise FrameError(
        f"{path} is not UTF-8, and as {name} has words such as {word!r}; name its encoding: "
        + "; ".join(readings.values())
    )
