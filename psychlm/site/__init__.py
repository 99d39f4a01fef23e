"""Run the numbered notebooks, render what they show, and build the page that leads to them."""

import sys

if "jsonschema" not in sys.modules and "rfc3987_syntax" not in sys.modules:
    # nbformat imports jsonschema, which would compile a grammar of IRIs, for 1.2 s. Notebooks have
    # none; where jsonschema is first imported here, it does not check the format "iri".
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    import jsonschema  # type: ignore[import-untyped]  # noqa: F401

    del sys.modules["rfc3987_syntax"]

from psychlm.site.collection import NotebookError, find, new  # noqa: E402
from psychlm.site.index import (  # noqa: E402
    LEDGER_COLUMNS,
    gather_numbers,
    gather_runs,
    match,
    printed_cells,
    read_report,
    report_files,
    reports_folder,
)
from psychlm.site.runner import run  # noqa: E402

__all__ = ["LEDGER_COLUMNS", "NotebookError", "find", "gather_numbers", "gather_runs", "match"]
__all__ += ["new", "printed_cells", "read_report", "report_files", "reports_folder", "run"]
