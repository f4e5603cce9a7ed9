"""Ops that pick elements by position or by order."""
