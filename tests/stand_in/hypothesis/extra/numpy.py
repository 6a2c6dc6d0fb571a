from hypothesis import __getattr__

__all__ = ["__getattr__"]
