"""Requests, blocks and budgets: what the next step computes."""
