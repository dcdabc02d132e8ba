"""Private environments of engines: one each, as their pinned dependencies fight with each other.

`recipes` says what is installed where, `making` does it with pip or uv, `store` keeps what is whole apart
from what was cut off, `entries` writes the user's engines.yaml; `install` and `remove` are the two commands.
"""
