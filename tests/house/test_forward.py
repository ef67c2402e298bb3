"""`docs/notes/forward.md` has a row for each inner name of other packages that this one uses, and none besides."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from inner_names import (
    BOTH,
    NO_NAMES,
    NOT_REPLACED,
    OF_FRIENDS,
    OURS,
    ROOT,
    by_room,
    inner_names,
    is_module,
    is_private,
    own_names,
    private_attributes,
    replaced,
    resolved,
    set_attributes,
    shortened,
    trees,
    used,
)

PAGE = ROOT / "docs" / "notes" / "forward.md"
#: The titles of the page's tables of names.
NAMES, SET = ("JAX", "PyTensor", "PyMC", "BlackJAX"), ("What is replaced, or set for others to read",)
#: A row of names: their owner, the names, their rooms, a purpose and a remedy.
ROW = re.compile(r"^\| `([\w.]+)`: ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
#: Names that the newest release may lack, since `base/pytensor_compat.py` has both places.
OLDER = {"pytensor.ifelse.IfElse", "pytensor.conditional.op.IfElse", "pytensor.conditional.op.LazyIfElse"}
#: How an object names itself, or another one of its class.
BY_ITSELF = re.compile(r"self|cls|other|super\(\)|type\(self\)")


class Row(NamedTuple):
    """A row of the page's tables of names: each name with its owner, and its rooms."""

    owner: str
    names: tuple[str, ...]
    rooms: set[str]


def rows(titles: Collection[str]) -> list[Row]:
    """Return the rows of the page's tables of names below some titles."""
    found = []
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        if section.partition("\n")[0] in titles:
            for owner, names, rooms in ROW.findall(section):
                found.append(Row(owner, tuple(re.findall(r"`(\w+)`", names)), set(re.findall(r"`(\w+)`", rooms))))
    return found


def compared(rows: list[Row], uses: dict[str, set[str]]) -> list[str]:
    """Return in what the rows of the page and the uses in the packages differ."""
    wrong, left = [], dict(uses)
    for row in rows:
        keys = [full if (full := f"{row.owner}.{name}") in uses else name for name in row.names]
        wrong += [f"{row.owner}.{key.rpartition('.')[2]}: a row without a use" for key in keys if key not in left]
        rooms = set().union(*(left.pop(key, set()) for key in keys))
        if rooms != row.rooms:
            wrong.append(f"{row.owner}: {', '.join(row.names)}: used in {sorted(rooms)}, and the row says otherwise")
    return wrong + [f"{name}: no row, and a use in {sorted(rooms)}" for name, rooms in left.items()]


def test_each_inner_name_has_a_row():
    assert compared(rows(NAMES), used()) == []


def test_each_replaced_attribute_has_a_row():
    assert compared(rows(SET), replaced()) == []


def test_lists_of_reviewed_names_are_used():
    """A name in a list of `inner_names.py` that nothing uses would hide a use that comes later."""
    assert not NOT_REPLACED - by_room(set_attributes).keys()
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not (BOTH | NO_NAMES | OF_FRIENDS) - texts - {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_who_reaches_into_other_objects_is_known():
    """A private name of this package may also be another package's: a use that is not by `self` is looked at once."""
    own = {name for name in own_names() if is_private(name)} - BOTH - OF_FRIENDS
    strange = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in own
                and not BY_ITSELF.fullmatch(ast.unparse(node.value))
            ):
                strange.add(ast.unparse(node))
    assert not strange, "add the name to BOTH of inner_names.py if another package has it, else to OF_FRIENDS"


def test_differences_are_found():
    uses = {"jax.core.f": {"run"}, "_g": {"emit"}, "_h": {"emit"}}
    good = [Row("jax.core", ("f",), {"run"}), Row("a.B", ("_g", "_h"), {"emit"})]
    assert compared(good, uses) == []
    assert compared(good[:1], uses) == [f"{x}: no row, and a use in ['emit']" for x in ("_g", "_h")]
    assert compared(good, {"jax.core.f": {"run"}})[:2] == ["a.B._g: a row without a use", "a.B._h: a row without a use"]
    assert "used in ['plan', 'run']" in compared(good, uses | {"jax.core.f": {"run", "plan"}})[0]
    tree = ast.parse(
        "import jax\nfrom jax._src import core as c\nc.Jaxpr._x(y._foreign)\njax.core.Tracer.z\njax.jit(f)"
    )
    assert set(inner_names(tree)) >= {"jax._src.core", "jax._src.core.Jaxpr._x", "jax.core.Tracer.z"}
    assert not [name for name in inner_names(tree) if "jit" in name]
    assert "_foreign" in set(private_attributes(tree)) and shortened("jax.core.Tracer.z") == "jax.core.Tracer"
    assert set(set_attributes(ast.parse("self.a = x.b = 1\nchange_property('c', f)"))) == {"b", "c"}


@pytest.mark.parametrize("row", rows((*NAMES, *SET)), ids=lambda row: f"{row.owner}-{row.names[0]}")
def test_the_installed_version_has_the_names(row):
    """An attribute of objects is in the source of their class."""
    if row.owner.partition(".")[0] in ("pymc", "blackjax"):
        pytest.importorskip(row.owner.partition(".")[0])
    missing = [name for name in row.names if f"{row.owner}.{name}" not in OLDER and not has(row.owner, name)]
    assert not missing, f"{row.owner} has no {', '.join(missing)}: do what docs/notes/forward.md says"


def has(owner: str, name: str) -> bool:
    """Return whether a module or a class of the installed packages has a name."""
    found = resolved(owner)
    return (
        hasattr(found, name)
        or is_module(f"{owner}.{name}")
        or re.search(rf"\b{name}\b", inspect.getsource(found)) is not None
    )


def test_assumptions_name_tests_that_exist():
    page = PAGE.read_text(encoding="utf-8").partition("\n## Assumptions\n")[2].partition("\n## ")[0]
    table = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| about")]
    for line in table:
        ((path, function),) = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), line
        room = line.split(" | ")[2].strip("`")
        assert room in OURS or (ROOT / OURS[0] / room).is_dir(), line
    assert len(table) > 10


def bounds_without_reason(text: str) -> Iterator[str]:
    """Yield each bound of a requirement, of Python or another package, that follows no comment."""
    for before, line in pairwise(text.splitlines()):
        if re.match(r"(    \w[\w-]*|python_requires = )[<>=]", line) and not before.lstrip().startswith("#"):
            yield line.strip()


def test_every_bound_has_a_reason():
    assert list(bounds_without_reason((ROOT / "setup.cfg").read_text(encoding="utf-8"))) == []
    assert list(bounds_without_reason("# why\n    a>=1\n    b>=2\npython_requires = >=3")) == [
        "b>=2",
        "python_requires = >=3",
    ]
