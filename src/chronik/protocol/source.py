"""A small writer of Python source: indented lines, fresh names, and the objects the finished code refers to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INDENT = "    "


class SourceWriter:
    """Collects the body of one function, then compiles it."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0
        self._bound: dict[Any, str] = {}

    def line(self, text: str) -> None:
        self._lines.append(INDENT * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """`opening` and, one level deeper, whatever is written inside the `with`."""
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str = "v") -> str:
        """A local name nobody else has."""
        self._names += 1
        return f"{stem}{self._names}"

    def bind(self, stem: str, key: Any, make: Callable[[], Any]) -> str:
        """A global name of the finished code for `make()`; one name per `key`."""
        bound = self._bound.get((stem, key))
        if bound is None:
            bound = self._bound[stem, key] = f"{stem}{len(self._bound)}"
            self.namespace[bound] = make()
        return bound

    def source(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, function: str, label: str) -> Any:
        """Run the source and return the function it defines; `label` names it in tracebacks."""
        exec(compile(self.source(), f"<{label}>", "exec"), self.namespace)
        return self.namespace[function]
