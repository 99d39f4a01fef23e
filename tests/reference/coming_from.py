"""Write coming_from.json: numbers of rows of docs/coming_from.md whose programs no test runs.

It needs R with the program, or minicons: python tests/reference/coming_from.py lme4 minicons
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rows_of_programs import PAGE, STORED, numbers, of_r, sections


def of_minicons(code: str) -> list[float]:
    """Return the numbers of a call in minicons, after the page's block of it."""
    names: dict[str, object] = {}
    block = re.search(r"^```py\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    exec(block[1], names)
    return numbers(eval(code, names)).tolist()


if __name__ == "__main__":
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for program in sys.argv[1:]:
        rows = sections()[program]["rows"]
        for _, theirs, _ in rows:
            given = of_minicons(theirs) if program == "minicons" else of_r(program, theirs).tolist()
            stored.setdefault(program, {})[theirs] = given
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
