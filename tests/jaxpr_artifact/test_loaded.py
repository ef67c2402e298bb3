"""What `load` returns: under JAX's transformations, with keys, for a state that is given, and what sizes must fit."""

import copy
import inspect
import pickle
import re

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.type import random_generator_type

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact.header import Argument
from jaxpr_artifact.state import check_sizes, taken
from tests.artifacts.test_export import run_elsewhere


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.jaxpr"


# Under JAX's transformations


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A function with two outputs, a check, and state that it does not update."""
    x, i = pt.dvector("x"), pt.lscalar("i")
    scale = pytensor.shared(2.0, name="scale")
    how = {"dims": {"x": "n"}, "vjp_order": 2, "batched": True}
    return pjl.export([x, i], [(x**3).sum() * scale, x[i]], path=tmp_path_factory.mktemp("loaded") / "f.jaxpr", **how)


def test_transformations_of_the_function_itself(loaded):
    x, rows = np.arange(1.0, 4.0), np.arange(6.0).reshape(2, 3)
    with jax.enable_x64(True):
        total, second = jax.jit(loaded)(x, 1)
        assert isinstance(total, jax.Array) and (total, second) == (72, 2)
        np.testing.assert_allclose(jax.grad(lambda x: loaded(x, i=0)[0])(x), 6 * x**2)
        np.testing.assert_allclose(jax.grad(lambda x: jax.grad(lambda x: loaded(x, 0)[0])(x).sum())(x), 12 * x)
        totals, _ = jax.vmap(loaded, (0, None))(rows, 0)
        np.testing.assert_allclose(totals, 2 * (rows**3).sum(1))
        inside = jax.jit(lambda y: loaded(x, 1)[0] + y)(1.0)  # all arguments are constants of the program
        assert inside == 73
        unchecked = jax.jit(loaded)(x, 7)[0]
        assert unchecked == 72
    assert isinstance(loaded(x, 1)[0], np.ndarray)
    with pytest.raises(IndexError):
        loaded(x, 7)
    with pytest.raises(TypeError, match="computes with 64 bits"):
        jax.jit(loaded)(x, 1)


@pytest.mark.parametrize("is_constant", [True, False])
def test_updates_under_a_transformation(is_constant, path):
    x, total = pt.fscalar("x"), pytensor.shared(np.float32(0), name="total")
    f = pytensor.function([x], total, updates={total: total + x}, mode="JAXPR", name="add")
    add = pjl.export(f, path=path)
    with pytest.raises(TypeError, match=r"add updates total.*add\.pure\(state.*add\.jax"):
        jax.jit(lambda x: add(np.float32(1) if is_constant else x))(np.float32(1))
    assert add.state["total"] == 0
    assert jax.jit(add.jax)(np.float32(1)) == 0
    add(1)
    assert add.state["total"] == 1


def test_vmap_without_a_batched_program(path):
    x = pt.fvector("x")
    f = pjl.export([x], x.sum(), path=path, name="total", vjp_order=1)
    for transformed in (jax.vmap(f), jax.vmap(jax.grad(f))):
        with pytest.raises(NotImplementedError, match=r"'total' was exported without .* export it with batched=True"):
            transformed(np.ones((2, 3), np.float32))


def test_the_third_derivative(loaded):
    third = jax.jacrev(jax.jacrev(jax.grad(lambda x: loaded(x, 0)[0])))
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"up to order 2: no artifact has more.*pytensor\.grad"):
        third(np.ones(2))


def test_any_name_of_an_argument(path):
    names = ["self", "state", "args", "kwargs"]
    inputs = [pt.fscalar(name) for name in names]
    f = pjl.export(inputs, sum(inputs[1:], inputs[0]), path=path, batched=True)
    assert str(inspect.signature(f)) == "(self, state, args, kwargs)"
    given = dict.fromkeys(names, np.float32(1))
    assert f(**given) == f.jax(**given) == f.pure({}, **given)[0] == jax.jit(f)(**given) == 4
    assert f.batched(**dict.fromkeys(names, np.ones(2, np.float32))).tolist() == [4, 4]
    assert f.trace(**given).jaxpr.out_avals[0].shape == ()


def test_any_name_of_an_argument_of_a_module():
    x = pt.dvector("self")
    module = pjl.Module("m", functions={"total": pjl.public([x], x.sum())})
    assert module.total(self=[1.0, 2.0]) == 3


def test_any_name_of_an_argument_of_a_program_of_iree(tmp_path):
    pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    x = pt.fscalar("self")
    assert pjl.export([x], x + 1, path=tmp_path / "f.vmfb")(self=1) == 2


# Keys


def kind(key):
    """Return whether a key is typed, or the data of one."""
    return "typed" if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) else str(key.dtype)


def under_jit(f):
    """Return a function under `jax.jit`, with 64 bits."""

    def call(*args):
        with jax.enable_x64(True):
            return jax.jit(f)(*args)

    return call


@pytest.mark.parametrize("door", ["call", "jax", "pure", "batched", "jit"])
def test_keys_are_of_the_kind_that_was_given(door, path):
    one, two = random_generator_type("one"), random_generator_type("two")
    following, draw = pt.random.normal(rng=two, return_next_rng=True)
    again, other = pt.random.normal(rng=one, return_next_rng=True)
    f = pjl.export([one, two], [2 * draw - other, following, again], path=path, batched=True)
    call = {
        "call": f,
        "jax": f.jax,
        "pure": lambda *keys: f.pure({}, *keys)[0],
        "batched": f.batched,
        "jit": under_jit(f),
    }[door]
    typed = jax.random.split(jax.random.key(1), 3) if door == "batched" else jax.random.key(1)
    raw = jax.random.key_data(typed)
    draws, next_of_raw, next_of_typed = call(typed, raw)
    assert (kind(next_of_raw), kind(next_of_typed)) == ("uint32", "typed")
    np.testing.assert_array_equal(jax.random.key_data(next_of_typed), next_of_raw)
    same, *others = call(raw, typed)
    assert [kind(key) for key in others] == ["typed", "uint32"]
    np.testing.assert_array_equal(draws, same)


def test_loops_carry_keys_of_either_kind(path):
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    f = pytensor.function([], [draw, following], updates={rng: following}, mode="JAXPR")
    draw = pjl.export(f, path=path)

    def step(state, _):
        (value, key), state = draw.pure(state)
        return state, (value, key)

    found = []
    with jax.enable_x64(True):
        for key in (jax.random.key(1), jax.random.key_data(jax.random.key(1))):
            state, (values, keys) = jax.lax.scan(step, {"rng": key}, length=3)
            assert kind(state["rng"]) == kind(keys) == kind(key)
            found.append(values)
    np.testing.assert_array_equal(*found)
    draw.state["rng"] = jax.random.key(1)
    for value in np.asarray(found[0]):
        got, key = draw()
        assert got == value and kind(key) == kind(draw.state["rng"]) == "uint32"


# The state that `pure` is given


def accumulator(path, dims="3"):
    x, total = pt.dvector("x"), pytensor.shared(np.zeros(3), name="total")
    f = pytensor.function([x], total.sum(), updates={total: total + x}, mode="JAXPR")
    return pjl.export(f, path=path, dims={"x": dims, "total": dims})


@pytest.mark.parametrize("total", [[1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3], np.float32)])
def test_state_is_cast_as_arguments_are(total, path):
    output, state = accumulator(path).pure({"total": total}, np.ones(3))
    assert float(output) == 6
    assert state["total"].dtype == "float64" and state["total"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"total": np.zeros(4)}, r"total has shape \(3,\), and its value has \(4,\)"),
        ({"total": np.zeros((3, 1))}, r"total has 1 axis, \(3,\)"),
        ({"total": np.zeros(3, complex)}, "total has dtype float64, and its value has complex128"),
        ({"total": None}, "total takes an array of dtype float64"),
        ({}, r"has the names \['total'\], not \[\]: it is the first"),
        (np.zeros(3), r"has the names \['total'\], not array"),
    ],
)
def test_state_that_does_not_fit(state, message, path):
    f = accumulator(path)
    f._backend.jitted["call"] = None  # nothing runs
    with pytest.raises(TypeError, match=message):
        f.pure(state, np.ones(3))


def test_state_of_32_bits_under_a_transformation(path):
    f = accumulator(path)
    with pytest.raises(TypeError, match="computes with 64 bits"):
        jax.jit(lambda state: f.pure(state, np.ones(3)))({"total": np.zeros(3)})


def test_lengths_that_arguments_share_with_the_state(path):
    f = accumulator(path, "n")
    with pytest.raises(TypeError, match="n is 2 for x and 3 for axis 0 of total"):
        f(np.ones(2))
    f.state["total"] = np.zeros(2)
    assert f(np.ones(2)) == 0
    with pytest.raises(TypeError, match="n is 4 for x and 5 for axis 0 of total"):
        f.pure({"total": np.ones(5)}, np.ones(4))


# Copies


def test_pickle_of_a_function(path):
    """It holds the file and the state: a process that has neither the file nor PyTensor goes on where this one is."""
    f = accumulator(path)
    f([1, 2, 3])
    (path.parent / "f.pickle").write_bytes(pickle.dumps(f))
    path.unlink()
    out = run_elsewhere(
        f"""
        import pickle
        with open({str(path.parent / "f.pickle")!r}, "rb") as file:
            f = pickle.load(file)
        print(f([0, 0, 0]), repr(f))
        """
    )
    assert out == f"6.0 {f!r}\n"


@pytest.mark.parametrize("copy", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copy_has_a_state_of_its_own(copy, path):
    f = accumulator(path)
    f([1, 1, 1])
    other = copy(f)
    assert other([1, 1, 1]) == 3
    assert f.state["total"].tolist() == [1, 1, 1] and other.state["total"].tolist() == [2, 2, 2]
    assert other.header == f.header


def test_a_pickle_has_large_state_once(path):
    weights = pytensor.shared(np.random.default_rng(0).random(100_000), name="weights")
    f = pjl.export([], weights.sum(), path=path, platforms=("cpu",))
    assert len(pickle.dumps(f)) < path.stat().st_size + 1000


# Sizes and numbers

SIZES = {
    "product": ({"x": "n", "y": "2*n"}, [3, 5], r"2\*n is 6, because n is 3 for x, and axis 0 of y has length 5"),
    "before": ({"x": "2*n", "y": "n"}, [5, 3], r"2\*n is 6, because n is 3 for y, and axis 0 of x has length 5"),
    "alone": ({"x": "2*n + 1"}, [4], r"Axis 0 of x has length 4, which is 2\*n \+ 1 for no n of 1 or more"),
    "zero": ({"x": "2*n"}, [0], r"Axis 0 of x has length 0, which is 2\*n for no n of 1 or more"),
    "two": ({"x": "n + m", "y": "n"}, [4, 4], r"Axis 0 of x has length 4, which is n \+ m for no m of 1 or more"),
    "sum": ({"x": "n + m", "y": "n", "z": "m"}, [4, 2, 3], r"n \+ m is 5, because m is 3 for z and n is 2 for y"),
    "power": ({"x": "n", "y": "n^2"}, [3, 8], r"n\^2 is 9, because n is 3 for x"),
    "quotient": ({"x": "n", "y": "floordiv(n, 2)"}, [5, 3], r"floordiv\(n, 2\) is 2, because n is 5"),
    "rest": ({"x": "n", "y": "mod(n, 3) + 1"}, [5, 4], r"mod\(n, 3\) \+ 1 is 3, because n is 5"),
    "larger": ({"x": "n", "y": "max(n, 4)"}, [5, 4], r"max\(n, 4\) is 5, because n is 5"),
    "keyword": ({"x": "class", "y": "2*class"}, [3, 5], r"2\*class is 6, because class is 3 for x"),
    "chain": ({"x": "2*n", "y": "n + m", "z": "m + k"}, [4, 5, 3], r"length 3, which is .* for no k of 1 or more"),
}


@pytest.mark.parametrize(("dims", "lengths", "message"), SIZES.values(), ids=SIZES)
def test_lengths_that_do_not_fit_an_expression(dims, lengths, message, path):
    inputs = [pt.fvector(name) for name in dims]
    f = pjl.export(inputs, sum(x.sum() for x in inputs), path=path, dims=dims, platforms=("cpu",))
    f._backend.jitted["call"] = None  # nothing runs
    with pytest.raises(TypeError, match=message):
        f(*[np.ones(n, np.float32) for n in lengths])


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("n >= 3", "n is 2 for x, and the function is for n >= 3"),
        ("n<=1", "n is 2 for x, and the function is for n<=1"),
        ("mod(n, 5) == 0", r"n is 2 for x, and the function is for mod\(n, 5\) == 0"),
        ("n >= m + 1", r"m is 2 for y and n is 2 for x, and the function is for n >= m \+ 1"),
    ],
)
def test_constraints(constraint, message, path):
    inputs = [pt.fvector("x"), pt.fvector("y")]
    dims = {"x": "n", "y": "m"}
    how = {"dims": dims, "constraints": [constraint], "platforms": ("cpu",)}
    f = pjl.export(inputs, sum(x.sum() for x in inputs), path=path, **how)
    f._backend.jitted["call"] = None  # nothing runs
    with pytest.raises(TypeError, match=message):
        f([1, 2], [1, 2])


def test_lengths_that_fit(path):
    inputs = [pt.fvector("x"), pt.fvector("y"), pt.fvector("z")]
    dims = {"x": "2*n + m", "y": "m", "z": "max(n, 2)*m - 1"}
    f = pjl.export(inputs, sum(x.sum() for x in inputs), path=path, dims=dims, constraints=["n >= m"])
    assert f([0] * 8, [0] * 2, [1] * 5) == 5


def test_lengths_inside_an_export_of_jax(path):
    """There lengths are symbols, and JAX compares their expressions."""
    inputs = [pt.fvector("x"), pt.fvector("y")]
    how = {"dims": {"x": "n", "y": "2*n"}, "constraints": "n >= 2"}
    f = pjl.export(inputs, inputs[0].sum() + inputs[1].sum(), path, **how)

    def exported(*shapes):
        scope = jax.export.SymbolicScope(["k >= 2"])
        avals = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), "float32") for shape in shapes]
        return jax.export.export(jax.jit(f))(*avals)

    assert exported("k", "2*k").call(np.ones(2, "float32"), np.ones(4, "float32")) == 6
    with pytest.raises(ValueError, match=r"inconsistency between dimension size .*3\*k"):
        exported("k", "3*k")


def test_lengths_that_overflow():
    arguments = [Argument("x", "int8", ("n",)), Argument("y", "int8", ("n^9*n^9",))]
    with pytest.raises(TypeError, match=r"is no length for n = 99999: it has more than 63 bits"):
        check_sizes(arguments, [np.zeros(99_999, np.int8), np.zeros(1, np.int8)])


NUMBERS = [
    ("float32", [1e300], None),
    ("float32", [0.1, -np.inf, np.nan], [np.float32(0.1), -np.inf, np.nan]),
    ("float16", [70_000.0], None),
    ("float32", [2**24 + 1], None),
    ("complex64", [0.1 + 1j], [np.complex64(0.1 + 1j)]),
    ("complex64", [1e300j], None),
    ("float64", [1j], None),
    ("float64", [1 + 0j], None),
    ("int8", [127], [127]),
    ("int8", [128], None),
    ("int64", [np.nan], None),
    ("uint64", [2**64 - 1], [2**64 - 1]),
    ("uint64", [-1], None),
    ("bool", [1, 0], [True, False]),
    ("bool", [2], None),
    ("int64", [], []),
    ("float64", ["1"], None),
]


@pytest.mark.parametrize(("dtype", "given", "wanted"), NUMBERS)
def test_python_numbers(dtype, given, wanted):
    argument = Argument("x", dtype, ("n",))
    if wanted is None:
        with pytest.raises(TypeError, match=re.escape(f"x takes an array of dtype {dtype}, which can't hold {given}")):
            taken(argument, given)
    else:
        found = taken(argument, given)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(wanted, dtype))
