"""packpass under the trainers that people have: one small packed model, trained a few steps in each of them."""
