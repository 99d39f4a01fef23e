"""Readers of public data: reading times, responses, item banks, text."""
