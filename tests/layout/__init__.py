"""The layout analysis: one rule at a time, on small graphs."""
