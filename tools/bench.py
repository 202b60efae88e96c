def bench() -> None:
    """x"""
