"""Write coming_from.json: numbers of rows of docs/coming_from.md whose programs no test runs.

It needs R with the program: python tests/reference/coming_from.py lme4
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from test_coming_from import STORED, of_r, sections

if __name__ == "__main__":
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    for program in sys.argv[1:]:
        rows = sections()[program]["rows"]
        stored[program] = {theirs: of_r(program, theirs).tolist() for _, theirs, _ in rows}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
