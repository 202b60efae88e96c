"""Endpoints, one or a few of a kind in a file; `endpoint.py` finds them."""
