"""Measuring under context parallelism: gloo ranks, the programs that run on them, races among them."""
