"""Tests that need several processes with torch.distributed."""
