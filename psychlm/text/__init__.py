"""Where words, items and responses come from: readers that return the frames of :mod:`psychlm.frames`."""
