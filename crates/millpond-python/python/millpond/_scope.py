"""Objects that act in a block or in each call of a function."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


class Scope(contextlib.ContextDecorator):
    """A context manager that also decorates functions and coroutine functions. Each call uses a new object."""

    def _again(self) -> Self:
        """Returns a new object with the same arguments."""
        raise NotImplementedError

    def __call__(self, function: Function) -> Function:
        name = type(self).__name__
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} cannot decorate generators: write `with millpond.{name}(...):` inside")
        wrapped: Any = self._of_coroutine(function) if inspect.iscoroutinefunction(function) else self._of_function(function)
        return cast(Function, functools.wraps(function)(wrapped))

    def _of_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def decorated(*arguments: Any, **named: Any) -> Any:
            with self._again():  # type: ignore[attr-defined]
                return function(*arguments, **named)

        return decorated

    def _of_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def decorated(*arguments: Any, **named: Any) -> Any:
            with self._again():  # type: ignore[attr-defined]
                return await function(*arguments, **named)

        return decorated
