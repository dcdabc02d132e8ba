"""Lets the torchvision of PyPI be imported beside a CPU build of torch. For tests only.

That torchvision is compiled for CUDA, so its library of operators does not load, and its import then asks
for two operators that nobody has declared ("operator torchvision::nms does not exist"). Here they are
declared, at the last moment before that, and only where they are missing. They still cannot be called.
Imported by a .pth file at every start of the interpreter: cheap until torchvision is imported.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ASKED_FOR = "torchvision._meta_registrations"
_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[Any] = []


class _Declare:
    """Finds no module: it only hears which one is looked for."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _ASKED_FOR and not _declared:
            import torch

            missing = [name for name in _OPERATORS if not hasattr(torch.ops.torchvision, name)]
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in missing:
                library.define(name + _OPERATORS[name])
            # what a library declares goes with it
            _declared.append(library)
        return None


sys.meta_path.insert(0, _Declare())
