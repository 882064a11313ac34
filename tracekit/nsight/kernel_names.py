"""Names of kernels as Nsight shortens them."""

from __future__ import annotations


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters, as Nsight shortens it.

    >>> short_name("void at::native::(anonymous namespace)::sum<4, at::Op<int> >(int, at::Op<int>)")
    'sum'
    """
    plain = name.replace("(anonymous namespace)", "")
    kept: list[str] = []
    angles = parentheses = 0
    for letter in plain:
        if letter in "()":
            if not angles:
                break
            parentheses += 1 if letter == "(" else -1
        elif letter in "<>" and not parentheses:
            angles += 1 if letter == "<" else -1
        elif not angles:
            kept.append(letter)
    words = "".join(kept).split("::")[-1].split()
    return words[-1] if words and not angles else name
