"""Probes of knowledge: multiple-choice questions built by rule, and accuracy on them.

wordnet         read WordNet's files into a graph of triples; hops, sister families and word
                relations of that graph as arrays
distractors     wrong answers close in the graph, with kind and distance
wordnet_qa      build probes of definitions, hypernymy, hyponymy and synonymy; write them to disk
confusion       perturb the prompt or the choices of any items
scores          accuracy by question, cluster, hops and kind of distractor
"""

__all__ = ["confusion", "distractors", "scores", "wordnet", "wordnet_qa"]
