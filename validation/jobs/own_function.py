"""A function of the user's own, named so that another process can find it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The name under which a file is imported: not `__main__`, so that what is only for a program does not run.
FILE_MODULE = "temper_own_module"


class FunctionError(ValueError):
    """No function that another process could find; the message says what was expected."""


@dataclass(frozen=True)
class OwnFunction:
    """A function `name` of a `file`, or else of a `module`; `path` is where its imports are looked for."""

    name: str
    module: str = ""
    file: str = ""
    path: tuple[str, ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import it here. Raises FunctionError, and whatever its module raises."""
        sys.path[:] = [*self.path, *(place for place in sys.path if place not in self.path)]
        if self.file:
            spec = importlib.util.spec_from_file_location(FILE_MODULE, self.file)
            if spec is None or spec.loader is None:
                raise FunctionError(f"{self.file}: expected a file of Python code, named .py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[FILE_MODULE] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(self.module)
        found = getattr(module, self.name, None)
        if not callable(found):
            raise FunctionError(f"{self.file or self.module} has no function {self.name}")
        return found  # type: ignore[no-any-return]  # callable() says it


def named(text: str) -> OwnFunction:
    """From `train.py:make_step` or `package.module:make_step`, looked for from the current folder.

    Raises FunctionError.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise FunctionError(f"expected FILE.py:FUNCTION or MODULE:FUNCTION, found {text!r}")
    if not where.endswith(".py"):
        return OwnFunction(name, module=where, path=(str(Path.cwd()),))
    file = Path(where).resolve()
    if not file.is_file():
        raise FunctionError(f"{where}: no such file; expected FILE.py:FUNCTION or MODULE:FUNCTION")
    return OwnFunction(name, file=str(file), path=(str(file.parent),))


def of(function: Callable[..., Any]) -> OwnFunction:
    """From the function itself, which must be one of a module. Raises FunctionError."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not name.isidentifier() or not module:
        raise FunctionError(
            f"expected a function defined at the top of a module, which another process can import, found "
            f"{name or function!r}"
        )
    path = tuple(filter(None, sys.path))
    if module != "__main__":
        return OwnFunction(name, module=module, path=path)
    file = getattr(sys.modules[module], "__file__", None)
    if not file:
        raise FunctionError(f"{name} was typed in, and no other process has it: write it to a file")
    return OwnFunction(name, file=str(Path(file).resolve()), path=path)
