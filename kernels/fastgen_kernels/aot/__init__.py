"""Compiles launches ahead of time, without a GPU, and tells what they cost."""
