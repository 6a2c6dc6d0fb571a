"""packcore's blocks for JAX and Grain. Nothing is exported yet."""

__all__: list[str] = []
