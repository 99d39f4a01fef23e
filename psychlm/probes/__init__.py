"""Probes of knowledge: WordNet, dictionary and confusion probes, and their scores."""
