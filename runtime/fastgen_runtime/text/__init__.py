"""Texts into token ids and back."""
