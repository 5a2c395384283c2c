"""Mixtures of experts larger than memory: where they lie, how they are streamed inside a budget, what is hit."""
