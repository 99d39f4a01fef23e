"""The papers' own code, a module a paper; notebooks, scripts in ``data/`` and tests use it."""
