"""The builder's op methods. They exist at run time through the registry; the stub beside this
file spells their types and is generated from the registry by `make stub`."""


class OpMethods:
    """Base of Graph that carries the op methods for type checkers."""
