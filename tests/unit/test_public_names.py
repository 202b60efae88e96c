"""The names of `riverrun` are the same for those who run it and for type checkers."""

from __future__ import annotations

import ast
import inspect

import pytest
import riverrun as rr
import riverrun.public

OWN = {"DEMO_MODEL", "__version__"}


def test_type_checkers_see_every_name() -> None:
    tree = ast.parse(inspect.getsource(rr))
    (seen,) = (
        {alias.name for alias in part.names}
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "_TYPE_CHECKING"
        for part in node.body
        if isinstance(part, ast.ImportFrom)
    )
    assert seen == set(riverrun.public.__all__) == set(rr.__all__) - OWN


@pytest.mark.parametrize("name", rr.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(rr, name) is not None
