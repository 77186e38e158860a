"""Reading and writing files of tensors: `gradlet.io.load(path)` reads every known format."""

from gradlet.io.formats import load

__all__ = ["load"]
