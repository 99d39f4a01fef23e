"""Analyses that only one paper needs."""
