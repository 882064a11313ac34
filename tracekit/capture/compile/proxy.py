"""A proxy that is called in place of a model and has the model's attributes and methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from typing_extensions import override

if TYPE_CHECKING:
    from torch import nn

#: Methods that change the model, so that code traced before is no longer valid.
_CHANGES = frozenset(
    (
        *("add_module", "apply", "register_buffer", "register_module", "register_parameter"),
        *("bfloat16", "cpu", "cuda", "double", "float", "half", "requires_grad_", "to", "to_empty"),
        *("type", "xpu"),
    )
)
#: Other methods that return the model.
_RETURN_MODEL = frozenset({"eval", "train"})


class ModelProxy:
    """Stands for a model, and notices when the model changes.

    Methods that return the model return the proxy instead.
    """

    #: The proxy's own attributes; all others are the model's.
    _OWN: ClassVar[frozenset[str]] = frozenset({"_orig_mod"})

    _orig_mod: nn.Module

    def _forget(self) -> None:
        """Discards everything made for the model as it was."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        if name in self._OWN:  # not set yet; asking the model would recurse forever
            raise AttributeError(name)
        value = getattr(self._orig_mod, name)
        if name not in _CHANGES and name not in _RETURN_MODEL:
            return value

        def method(*args: object, **kwargs: object) -> object:
            if name in _CHANGES:
                self._forget()
            result = value(*args, **kwargs)
            return self if result is self._orig_mod else result

        return method

    @override
    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute of the model, which may invalidate its code."""
        if name in self._OWN:
            object.__setattr__(self, name, value)
            return
        self._forget()
        setattr(self._orig_mod, name, value)

    @override
    def __delattr__(self, name: str) -> None:
        self._forget()
        delattr(self._orig_mod, name)

    @override
    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    @override
    def __repr__(self) -> str:
        return f"CompiledModel({self._orig_mod!r})"

    @override
    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        raise TypeError(
            "a CompiledModel cannot be pickled or copied, because its code belongs to this process; "
            "pickle or copy the original model and compile it again"
        )
