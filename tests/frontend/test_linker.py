"""Mode JAXPR as a PyTensor mode: storage, shared variables, generators, errors and options."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.compile.io import In, Out
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.raise_op import Assert

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options
from pytensor_jaxpr_linker.frontend.register import register


def compiled(inputs, outputs, mode="JAXPR", **kwargs):
    """Compile with mode JAXPR."""
    return pytensor.function(inputs, outputs, mode=mode, **kwargs)


def mode_with(**options):
    """Return mode JAXPR with options."""
    return Mode(JaxprLinker(Options(**options)), "fast_run")


class Unknown(Op):
    """An Op that nobody has a rule for."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0]


# Modes


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("JAXPR", id="name"),
        pytest.param(pjl.JAXPR, id="object"),
        pytest.param(Mode(linker="jaxpr"), id="linker-name"),
        pytest.param(Mode(linker="jaxpr", optimizer="fast_run"), id="linker-name-fast-run"),
        pytest.param(Mode(JaxprLinker(), None), id="no-rewrites"),
        pytest.param(get_mode("JAXPR").including("inplace"), id="including"),
        pytest.param(get_mode("JAXPR").excluding("fusion", "canonicalize"), id="excluding"),
        pytest.param(pjl.JAXPR.clone(), id="clone"),
    ],
)
def test_mode_is_run_by_this_linker(mode):
    x = pt.vector("x", dtype="float64")
    f = compiled([x], pt.log(pt.exp(x) + 1), mode=mode)
    assert isinstance(f.maker.linker, JaxprLinker)
    np.testing.assert_allclose(f([0.0, 1.0]), np.log1p(np.exp([0.0, 1.0])))


def test_what_is_printed_and_completed():
    assert "\n" not in str(pjl.JAXPR) and len(str(pjl.JAXPR)) < 500
    assert {"explain", "Options", "pymc"} <= set(dir(pjl)) and "linker" not in dir(pjl)
    if find_spec("pymc"):
        assert {"sample", "diagnose"} <= set(dir(pjl.pymc)) and "arguments" not in dir(pjl.pymc)
    with pytest.raises(AttributeError, match="has no attribute 'explian'"):
        pjl.explian  # noqa: B018


def test_a_mode_is_made_of_options_and_rewrites():
    x = pt.vector("x", dtype="float64")
    assert isinstance(compiled([x], x + 1, mode=pjl.JaxprMode())([1.0]), np.ndarray)
    assert isinstance(compiled([x], x + 1, mode=pjl.JaxprMode(results="jax"))([1.0]), jax.Array)
    assert isinstance(compiled([x], x + 1, mode=pjl.JaxprMode("jaxpr", None)).maker.linker, JaxprLinker)
    assert pjl.JaxprMode(fullgraph=True).clone().linker.options == Options(on_break="raise")
    assert pjl.JaxprMode().provided_optimizer.include == pjl.JAXPR.provided_optimizer.include


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pjl.JaxprMode(Options()), r"takes a JaxprLinker, not Options.*JaxprMode\(JaxprLinker\(options\)\)"),
        (lambda: pjl.JaxprMode("numba"), r"takes a JaxprLinker, not 'numba'.*pytensor\.compile\.mode\.Mode"),
        (lambda: pjl.JaxprMode(JaxprLinker(), results="jax"), r"JaxprLinker\(Options\(results='jax'\)\)"),
        (lambda: pjl.JaxprMode(fulgraph=True), "fulgraph"),
        (lambda: JaxprLinker("jax"), r"takes an Options object, such as Options\(results='jax'\), not 'jax'"),
        (lambda: JaxprLinker({"results": "jax"}), "takes an Options object"),
    ],
)
def test_modes_and_linkers_refuse_what_they_do_not_take(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_mode_made_for_mode_jax():
    x, n = pt.dvector("x"), pt.iscalar("n")
    rng = pytensor.shared(np.random.default_rng(1))
    _, z = pt.random.normal(size=(n, n), rng=rng, return_next_rng=True)
    mode = Mode(JaxprLinker(), RewriteDatabaseQuery(include=["jax"]))
    y, z = pytensor.function([x, n], [x.reshape((n, n)), z], mode=mode)(np.arange(4.0), 2)
    np.testing.assert_array_equal(y, [[0, 1], [2, 3]])
    assert z.shape == (2, 2)


@pytest.mark.parametrize("mode", [pjl.JAXPR, "JAXPR"], ids=["mode", "name"])
def test_config_mode_is_default(mode):
    x = pt.vector("x", dtype="float64")
    with pytensor.config.change_flags(mode=mode):
        f = pytensor.function([x], x + 1)
    assert isinstance(f.maker.linker, JaxprLinker)
    np.testing.assert_array_equal(f([1.0]), [2.0])


def test_config_mode_refuses_other_names_as_before():
    register(pjl.JAXPR)
    with (
        pytest.raises(ValueError, match=r"Expected one of .*Instead got: JAXP\."),
        pytensor.config.change_flags(mode="JAXP"),
    ):
        pass
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert pytensor.config.mode == "FAST_COMPILE"


def test_functions_say_what_they_are():
    x, n = pt.vector("x"), pytensor.shared(1.0, "n")
    f = pytensor.function([x], [x * n, x + 1], updates={n: n + 1}, mode="JAXPR")
    assert repr(f) == "<function of mode JAXPR of ('x') with 2 outputs>"
    assert repr(pytensor.function([x], x * n, mode="JAXPR")) == "<function of mode JAXPR of ('x') with 1 output>"


def test_options_survive_clones_of_the_mode():
    mode = mode_with(results="jax").excluding("fusion")
    x = pt.vector("x", dtype="float64")
    assert isinstance(compiled([x], x + 1, mode=mode)([1.0]), jax.Array)
    assert isinstance(compiled([x], x + 2, mode=mode)([1.0]), jax.Array)


@pytest.mark.parametrize("options", [{"results": "torch"}, {"specializations": 0}], ids=["results", "specializations"])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Options(**options)


# What pytensor.function takes


def test_givens():
    x, y = (pt.vector(n, dtype="float64") for n in ("x", "y"))
    np.testing.assert_array_equal(compiled([y], x * 2, givens={x: y + 1})([1.0]), [4.0])


def test_shared_and_updates():
    s = pytensor.shared(np.zeros(2), name="s")
    x = pt.vector("x", dtype="float64")
    f = compiled([x], s * 10, updates={s: s + x})
    np.testing.assert_array_equal(f([1.0, 2.0]), [0, 0])
    np.testing.assert_array_equal(f([1.0, 2.0]), [10, 20])
    np.testing.assert_array_equal(s.get_value(), [2, 4])


def test_updates_swap_two_shared_variables():
    a, b = pytensor.shared(np.zeros(2)), pytensor.shared(np.ones(2))
    f = compiled([], [], updates={a: b, b: a})
    for want in (1, 0, 1):
        f()
        np.testing.assert_array_equal(a.get_value(), [want] * 2)
        np.testing.assert_array_equal(b.get_value(), [1 - want] * 2)


def test_update_with_another_shared_variable_does_not_share_memory():
    a, b = pytensor.shared(np.zeros(2)), pytensor.shared(np.ones(2))
    compiled([], [], updates={a: b})()
    a.get_value(borrow=True)[:] = 5
    np.testing.assert_array_equal(b.get_value(), [1, 1])


def test_update_that_is_also_an_output():
    s = pytensor.shared(np.zeros(2))
    new = s + 1
    out = compiled([], new, updates={s: new})()
    out[:] = 9
    np.testing.assert_array_equal(s.get_value(), [1, 1])


def test_input_as_update_does_not_alias_the_argument():
    s = pytensor.shared(np.zeros(2))
    x = pt.vector("x", dtype="float64")
    argument = np.ones(2)
    compiled([x], [], updates={s: x})(argument)
    argument[:] = 7
    np.testing.assert_array_equal(s.get_value(), [1, 1])


@pytest.mark.parametrize("delete_updates", [False, True], ids=["keep-updates", "delete-updates"])
def test_copy_with_swap(delete_updates):
    a, b = pytensor.shared(np.zeros(1), name="a"), pytensor.shared(np.full(1, 5.0), name="b")
    x = pt.vector("x", dtype="float64")
    f = compiled([x], a + x, updates={a: a + 1})
    if delete_updates:
        g = f.copy(delete_updates=True)
        np.testing.assert_array_equal(g([1.0]), [1.0])
        assert a.get_value() == 0
        return
    g = f.copy(swap={a: b})
    np.testing.assert_array_equal(g([1.0]), [6.0])
    assert (a.get_value(), b.get_value()) == (0, 6)
    np.testing.assert_array_equal(f([1.0]), [1.0])
    assert (a.get_value(), b.get_value()) == (1, 6)


def test_copy_shares_memory_of_shared_variables():
    s = pytensor.shared(np.zeros(1), name="s")
    f = compiled([], s + 0.0, updates={s: s + 1})
    g = f.copy(share_memory=True)
    f()
    np.testing.assert_array_equal(g(), [1.0])
    np.testing.assert_array_equal(s.get_value(), [2.0])


def test_trust_input():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + 1, trust_input=True)
    np.testing.assert_array_equal(f(np.ones(2)), [2, 2])


ARGUMENTS = {
    "positions": ((1.0, 2.0), {}),
    "names": ((), {"y": 1.0, "x": 2.0}),
    "both": ((1.0,), {"y": 2.0}),
    "none": ((), {}),
    "missing": ((1.0,), {}),
    "too many": ((1.0, 2.0, 3.0), {}),
    "twice": ((1.0, 2.0), {"x": 3.0}),
    "twice, one missing": ((1.0,), {"x": 2.0}),
    "unknown": ((1.0, 2.0), {"z": 3.0}),
    "unknown, one missing": ((1.0,), {"z": 3.0}),
    "text": ((1.0, "two"), {}),
    "no value": ((1.0, None), {}),
    "another rank": (([1.0], 2.0), {}),
}


@pytest.mark.parametrize("shared", [False, True], ids=["plain", "shared"])
@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_arguments(args, kwargs, shared):
    x, y = (pt.scalar(n, dtype="float64") for n in ("x", "y"))
    output = x - 2 * y + (pytensor.shared(np.ones(3), name="s") if shared else 0)
    found = []
    for mode in ("FAST_COMPILE", "JAXPR"):
        f = compiled([x, y], output, mode=mode)
        for _ in range(2):  # a call that fails leaves nothing behind
            try:
                result = f(*args, **kwargs).tolist()
            except Exception as error:
                result = (type(error), str(error))
            found.append(result)
        np.testing.assert_array_equal(f(3.0, y=1.0), 2 if shared else 1)
    assert found[0] == found[1] == found[2] == found[3]


def test_unknown_argument_of_a_function_without_inputs():
    f = compiled([], pytensor.shared(np.ones(3)) * 2)
    with pytest.raises(TypeError, match="Unknown input: a"):
        f(a=1.0)
    np.testing.assert_array_equal(f(), 2)


def test_on_unused_input():
    x, y = (pt.vector(n, dtype="float64") for n in ("x", "y"))
    with pytest.raises(pytensor.compile.UnusedInputError):
        compiled([x, y], x)
    np.testing.assert_array_equal(compiled([x, y], x, on_unused_input="ignore")([1.0], [2.0]), [1.0])


def test_allow_gc_false():
    s = pytensor.shared(np.ones(2))
    with pytensor.config.change_flags(allow_gc=False):
        f = compiled([], s * 2)
    np.testing.assert_array_equal(f(), [2, 2])
    s.set_value(np.full(2, 3.0))
    np.testing.assert_array_equal(f(), [6, 6])


@pytest.mark.filterwarnings("ignore:Profile")
def test_profile(capsys):
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x * 2, profile=True)
    f([1.0])
    f([2.0])
    assert f.profile.fct_callcount == 2
    assert f.profile.fct_call_time > 0
    f.profile.print_summary = False


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_no_inputs(static):
    s = pytensor.shared(np.arange(3.0), shape=(3,) if static else (None,))
    np.testing.assert_array_equal(compiled([], s.sum())(), 3.0)


def test_no_outputs():
    x = pt.vector("x", dtype="float64")
    assert compiled([x], [], on_unused_input="ignore")([1.0]) == []
    assert compiled([x], None, on_unused_input="ignore")([1.0]) == []


@pytest.mark.parametrize(
    "value", [2.5, np.arange(3), np.zeros((0, 2)), np.arange(5000.0)], ids=["scalar", "ints", "empty", "large"]
)
def test_constant_output_is_fresh_each_call(value):
    f = compiled([], pt.constant(value))
    first = f()
    first[...] = 77
    np.testing.assert_array_equal(f(), value)
    assert f().dtype == pt.constant(value).dtype


@pytest.mark.parametrize("size", [3, 200_000], ids=["small", "large"])
@pytest.mark.parametrize("device", [False, True], ids=["numpy", "jax"])
def test_output_that_is_input_does_not_alias(size, device):
    x = pt.vector("x", dtype="float64")
    f = compiled([x], [x, x])
    value = np.ones(size)
    with jax.enable_x64(True):
        first, second = f(jax.numpy.asarray(value)) if device else f(value)
    first[:] = 2
    np.testing.assert_array_equal(value, 1)
    np.testing.assert_array_equal(second, 1)


@pytest.mark.parametrize("size", [3, 200_000], ids=["small", "large"])
def test_same_output_twice_does_not_alias(size):
    x = pt.vector("x", dtype="float64")
    y = x + 1
    first, second = compiled([x], [y, y])(np.ones(size))
    first[:] = 9
    np.testing.assert_array_equal(second, 2)


@pytest.mark.parametrize("size", [3, 200_000], ids=["small", "large"])
def test_output_that_is_shared_does_not_alias(size):
    s = pytensor.shared(np.ones(size))
    compiled([], s)()[:] = 3
    np.testing.assert_array_equal(s.get_value(), 1)


def test_keyword_arguments():
    x, y = (pt.vector(n, dtype="float64") for n in ("x", "y"))
    f = compiled([x, In(y, name="other")], x - y)
    np.testing.assert_array_equal(f(other=[1.0], x=[5.0]), [4.0])


# Pickling


def test_pickle_with_shared_and_options():
    s = pytensor.shared(np.zeros(2), name="s")
    f = compiled([], s + 1, updates={s: s + 1}, mode=mode_with(results="jax", specializations=3))
    f()
    g = pickle.loads(pickle.dumps(f))
    assert g.maker.linker.options == Options(results="jax", specializations=3)
    result = g()
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, [2, 2])
    np.testing.assert_array_equal(f(), [2, 2])


@pytest.mark.parametrize("name", ["function JaxprFunction", "function JaxprMode", "linker JaxprLinker"])
def test_pickles_of_older_versions_say_that_they_are(name):
    """A pickled function names one of these first; its modules have moved since."""
    stream = f"cpytensor_jaxpr_linker.{name.replace(' ', chr(10))}\n.".encode()
    with pytest.raises(ImportError, match="compile the function again"):
        pickle.loads(stream)


def test_pickle_with_generator():
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, draw = pt.random.normal(size=2, rng=rng, return_next_rng=True)
    f = compiled([], draw, updates={rng: following})
    g = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(g(), f())
    np.testing.assert_array_equal(g(), f())


# Results


@pytest.mark.parametrize("size", [2, 131_072], ids=["small", "1MB"])
def test_results_are_writable_and_stay(size):
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + 1)
    first = f(np.zeros(size))
    assert type(first) is np.ndarray and first.flags.writeable
    second = f(np.ones(size))
    first += 10
    np.testing.assert_array_equal(second, 2)
    del f
    np.testing.assert_array_equal(first, 11)
    pickle.loads(pickle.dumps(first))


def test_borrowed_result_is_read_only_view():
    x = pt.vector("x", dtype="float64")
    result = compiled([x], Out(x + 1, borrow=True))(np.zeros(131_072))
    assert type(result) is np.ndarray and not result.flags.writeable and result.base is not None
    np.testing.assert_array_equal(result, 1)


def test_results_jax_stay_on_device():
    x = pt.vector("x", dtype="float64")
    s = pytensor.shared(np.ones(3))
    f = compiled([x], x + s, mode=mode_with(results="jax"))
    with jax.enable_x64(True):
        value = jax.numpy.ones(3)
    f(value)
    with jax.transfer_guard("disallow"):
        result = f(value)
        result = f(result)
    assert isinstance(result, jax.Array) and result.dtype == "float64"
    np.testing.assert_array_equal(result, 3)


def test_large_constants_stay_on_device():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + np.arange(5000.0), mode=mode_with(results="jax"))
    with jax.enable_x64(True):
        value = jax.numpy.ones(5000)
    f(value)
    with jax.transfer_guard("disallow"):
        f(value)


def test_large_constant_and_its_transpose_are_uploaded_once():
    design = pt.as_tensor(np.random.default_rng(0).normal(size=(2000, 5)))
    x, y = pt.dvector("x"), pt.dvector("y")
    f = compiled([x, y], [design @ x, design.T @ y, design[::2].sum()])
    assert len(f.vm.runner.program.constants) == 1
    values = [np.arange(5.0), np.arange(2000.0)]
    data = design.data
    for got, want in zip(f(*values), [data @ values[0], data.T @ values[1], data[::2].sum()], strict=True):
        np.testing.assert_allclose(got, want)
    fn = pjl.as_jax_function(f)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.grad(lambda x: fn(x, values[1])[0].sum())(values[0]), data.sum(0))


def test_result_of_a_function_is_input_of_the_next():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], x + 1)
    value = f(np.zeros(131_072))
    value[0] = 5
    np.testing.assert_array_equal(f(value)[:2], [6, 2])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "float64", "complex128"]
)
def test_dtypes_are_exact(dtype):
    x = pt.vector("x", dtype=dtype)
    result = compiled([x], x)(np.ones(2, dtype))
    assert result.dtype == dtype


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
@pytest.mark.parametrize("mode", ["JAXPR", Mode(JaxprLinker(), "fast_run")], ids=["JAXPR", "Mode"])
def test_compiled_functions_inside_transformations(transform, mode):
    x, scale = pt.dvector("x"), pytensor.shared(2.0)
    f = pytensor.function([x], (x * scale).sum(), mode=mode)
    call = f if mode == "JAXPR" else lambda x: f(x)
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"'x' is a tracer of a JAX .*as_jax_function\(f\)"):
        transform(call)(np.ones((2, 2)) if transform is jax.vmap else np.ones(2))


CASTS = [
    ("float32", "float64"),
    ("int8", "float32"),
    ("int32", "int64"),
    ("bool", "float64"),
    ("float64", "complex128"),
]


@pytest.mark.parametrize(("given", "declared"), CASTS)
def test_device_arrays_are_cast_on_the_device(given, declared):
    x = pt.vector("x", dtype=declared)
    f = pytensor.function([x], x * 2, mode="JAXPR")
    want = pytensor.function([x], x * 2, mode="FAST_COMPILE")
    with jax.enable_x64(True):
        value = jax.numpy.array([1, 0, 3], given)
    f(value)
    with jax.transfer_guard_device_to_host("disallow"):
        assert isinstance(f.input_storage[0].type.filter(value), jax.Array)
    np.testing.assert_array_equal(f(value), want(np.asarray(value)), strict=True)


@pytest.mark.parametrize(("given", "declared"), [("float64", "float32"), ("int64", "float32"), ("float32", "int32")])
def test_device_arrays_that_pytensor_does_not_cast(given, declared):
    x = pt.vector("x", dtype=declared)
    with jax.enable_x64(True):
        value = jax.numpy.array([1.0, 2.5], given)
    with pytest.raises(TypeError, match="without risking loss of precision"):
        pytensor.function([x], x * 2, mode="JAXPR")(value)
    if declared == "float32":
        inputs = [In(x, allow_downcast=True)]
        f, want = (pytensor.function(inputs, x * 2, mode=mode) for mode in ("JAXPR", "FAST_COMPILE"))
        np.testing.assert_array_equal(f(value), want(np.asarray(value)), strict=True)
    with pytest.raises(TypeError, match="expected an ndarray with dtype"):
        pytensor.function([In(x, strict=True)], x * 2, mode="JAXPR")(value)


def test_int64_under_float32():
    with pytensor.config.change_flags(floatX="float32"):
        x = pt.lvector("x")
        total, mean = compiled([x], [x.sum(), x.mean(dtype="float32")])([2**40, 2**40 + 2])
    assert (total.dtype, mean.dtype) == ("int64", "float32")
    assert int(total) == 2**41 + 2


# Shared variables


def test_shared_is_uploaded_once():
    s = pytensor.shared(np.ones(1000))
    f = compiled([], s * 2, mode=mode_with(results="jax"))
    f()
    before = s.get_value(borrow=True).ctypes.data
    with jax.transfer_guard("disallow"):
        f()
    assert s.get_value(borrow=True).ctypes.data == before


def test_shared_set_value_and_other_shape():
    s = pytensor.shared(np.ones(2))
    f = compiled([], s * 2)
    f()
    s.set_value(np.full(2, 4.0))
    np.testing.assert_array_equal(f(), [8, 8])
    s.set_value(np.full(5, 4.0))
    np.testing.assert_array_equal(f(), [8] * 5)
    s.set_value(np.zeros(0))
    assert f().shape == (0,)
    mine = np.ones(2)
    s.set_value(mine, borrow=True)
    np.testing.assert_array_equal(f(), [2, 2])


def test_shared_changed_in_place():
    s = pytensor.shared(np.ones(2))
    f = compiled([], s * 2)
    f()
    s.get_value(borrow=True)[0] = 7
    np.testing.assert_array_equal(f(), [14, 2])


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_shared_updated_by_another_mode(mode):
    s = pytensor.shared(np.zeros((2, 2)), name="s")
    f = compiled([], s * 2, updates={s: s + 1})
    other = pytensor.function([], s.sum(), updates={s: pt.inc_subtensor(s[0], 10.0)}, mode=mode)
    f()
    np.testing.assert_array_equal(other(), 4)
    np.testing.assert_array_equal(f(), [[22, 22], [2, 2]])
    np.testing.assert_array_equal(other(), 28)
    np.testing.assert_array_equal(s.get_value(), [[22, 22], [2, 2]])
    value = s.container.storage[0]
    assert type(value) is np.ndarray and value.flags.writeable


def test_updated_value_is_ndarray_that_others_may_write():
    s = pytensor.shared(np.zeros(2))
    compiled([], [], updates={s: s + 1})()
    value = s.get_value(borrow=True)
    assert type(value) is np.ndarray and value.flags.writeable
    pickle.loads(pickle.dumps(s))
    kept = s.get_value()
    compiled([], [], updates={s: s + 1})()
    np.testing.assert_array_equal(kept, [1, 1])


def test_shared_integer_determines_shape():
    n = pytensor.shared(3, name="n")
    f = compiled([], pt.arange(n), updates={n: n + 1})
    assert [f().tolist(), f().tolist()] == [[0, 1, 2], [0, 1, 2, 3]]
    n.set_value(1)
    assert f().tolist() == [0]


def test_error_leaves_shared_and_generators_alone():
    s = pytensor.shared(np.zeros(3), name="s")
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    following, draw = pt.random.normal(rng=rng, return_next_rng=True)
    i = pt.lscalar("i")
    y = pt.vector("y", dtype="float64")
    positive = Assert("must be positive")(y, (y > 0).all())
    f = compiled([i, y], s[i] + draw, updates={s: s + positive, rng: following})
    f(0, np.ones(3))
    state, value = rng.get_value().bit_generator.state, s.get_value()
    for args, error, match in [
        ((3, np.ones(3)), IndexError, None),
        ((0, -np.ones(3)), AssertionError, "must be positive"),
        ((0, np.ones(2)), ValueError, None),
        ((0, np.ones((2, 2))), TypeError, "y"),
    ]:
        with pytest.raises(error, match=match):
            f(*args)
        assert rng.get_value().bit_generator.state == state
        np.testing.assert_array_equal(s.get_value(), value)
    f(0, np.ones(3))
    np.testing.assert_array_equal(s.get_value(), value + 1)


# Random generators


def shared_draws(seed=3):
    """Return a shared generator, its successor and draws."""
    rng = pytensor.shared(np.random.default_rng(seed), name="rng")
    return rng, *pt.random.normal(size=3, rng=rng, return_next_rng=True)


def test_update_advances_generator_in_container():
    rng, following, draw = shared_draws()
    before = rng.get_value(borrow=True)
    state = before.bit_generator.state
    f = compiled([], draw, updates={rng: following})
    first, second = f(), f()
    assert not np.allclose(first, second)
    after = rng.get_value(borrow=True)
    assert isinstance(after, np.random.Generator) and after.bit_generator.state != state
    rng.set_value(np.random.default_rng(3))
    np.testing.assert_array_equal([f(), f()], [first, second])


def test_no_update_repeats_draws():
    _, _, draw = shared_draws()
    f = compiled([], draw)
    np.testing.assert_array_equal(f(), f())


def test_functions_that_share_a_generator_draw_differently():
    rng, following, draw = shared_draws()
    f, g = (compiled([], draw, updates={rng: following}) for _ in range(2))
    draws = np.concatenate([f(), g(), f(), g()])
    assert len(set(draws)) == 12


def test_generator_shared_with_another_mode():
    rng, following, draw = shared_draws()
    f = compiled([], draw, updates={rng: following})
    g = pytensor.function([], draw, updates={rng: following}, mode="FAST_COMPILE")
    draws = np.concatenate([f(), g(), f(), g()])
    assert len(set(draws)) == 12


def test_explicit_generator_input_and_output():
    rng = pt.random.type.random_generator_type("rng")
    following, draw = pt.random.normal(size=3, rng=rng, return_next_rng=True)
    f = compiled([rng], [following, draw])
    start = np.random.default_rng(5)
    state = start.bit_generator.state
    advanced, first = f(start)
    assert start.bit_generator.state == state
    assert isinstance(advanced, np.random.Generator)
    np.testing.assert_array_equal(f(np.random.default_rng(5))[1], first)
    assert not np.allclose(f(advanced)[1], first)


def test_two_generators_draw_differently():
    (first, next_first, a), (second, next_second, b) = shared_draws(1), shared_draws(2)
    f = compiled([], [a, b], updates={first: next_first, second: next_second})
    draws = np.concatenate([*f(), *f()])
    assert len(set(draws)) == 12


def test_chain_on_one_generator_continues():
    rng = pytensor.shared(np.random.default_rng(2))
    middle, a = pt.random.normal(rng=rng, return_next_rng=True)
    last, b = pt.random.uniform(rng=middle, return_next_rng=True)
    f = compiled([], [a, b], updates={rng: last})
    draws = [*f(), *f(), *f()]
    assert len({float(d) for d in draws}) == 6


# JAX's settings


def test_x64_setting_never_flips():
    out = run_python("""
        import warnings; warnings.simplefilter("error")
        import jax, numpy as np
        assert not jax.config.jax_enable_x64
        import pytensor, pytensor.tensor as pt
        import pytensor_jaxpr_linker as pjl
        x = pt.vector("x", dtype="float64")
        s = pytensor.shared(np.ones(2))
        f = pytensor.function([x], x + s, updates={s: s + 1}, mode="JAXPR")
        assert f([1.0, 2.0]).dtype == "float64"
        assert pjl.as_jax_function([x], [x * 2])(np.ones(2))[0].dtype == "float64"
        pjl.make_jaxpr(f, [1.0, 2.0])
        try:
            f("a")
        except Exception:
            pass
        assert not jax.config.jax_enable_x64
        assert jax.numpy.ones(2).dtype == "float32"
        assert jax.jit(lambda x: x * 2)(np.ones(2)).dtype == "float32"
        print("ok")
    """)
    assert out.strip().endswith("ok")


def test_threads_call_one_function():
    x, n = pt.vector("x", dtype="float64"), pt.lscalar("n")
    # A Function's containers are its own: threads use copies, which share the program's caches.
    f = compiled([x, n], pt.arange(n).sum() + x)
    copies = [f.copy() for _ in range(2)]

    def work(i):
        g = copies[i]
        return [g(np.full(2, float(i)), n) for n in range(1, 9)]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, range(2)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, [[n * (n - 1) / 2 + i] * 2 for n in range(1, 9)])


def test_threads_call_same_function():
    x = pt.vector("x", dtype="float64")
    f = compiled([x], pt.exp(x))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: f(np.ones(3)), range(50)))
    np.testing.assert_allclose(results, np.e)


# Errors


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        pytest.param(pt.lvector("myvar"), [1.5], TypeError, id="dtype"),
        pytest.param(pt.vector("myvar", dtype="float64"), np.ones((2, 2)), TypeError, id="rank"),
        pytest.param(pt.tensor("myvar", dtype="float64", shape=(3,)), np.ones(2), TypeError, id="static-shape"),
        pytest.param(pt.vector("myvar", dtype="float64"), None, TypeError, id="none"),
        pytest.param(pt.vector("myvar", dtype="float64"), np.array([object()]), TypeError, id="object"),
        pytest.param(pt.vector("myvar", dtype="float64"), "text", (TypeError, ValueError), id="text"),
    ],
)
def test_bad_input_names_variable(variable, value, error):
    f = compiled([variable], variable + 1)
    with pytest.raises(error) as raised:
        f(value)
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "myvar" in text


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(2)], ids=["rank", "static-shape"])
def test_bad_device_input_names_variable(value):
    f = compiled([x := pt.tensor("myvar", dtype="float64", shape=(3,))], x + 1)
    with jax.enable_x64(True):
        value = jax.numpy.asarray(value)
    with pytest.raises(TypeError) as raised:
        f(value)
    assert "myvar" in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def test_run_time_mismatch_names_variables():
    x, y = (pt.vector(n, dtype="float64") for n in ("left", "right"))
    with pytest.raises(ValueError, match=r"shape|dimension|size") as raised:
        compiled([x, y], x + y)(np.ones(2), np.ones(3))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "left" in text and "right" in text


def test_graph_break_lists_all():
    x, y = (pt.vector(n, dtype="float64") for n in ("left", "right"))
    first, second = Unknown()(x), Unknown()(y)
    first.name, second.name = "first", "second"
    with pytest.raises(NotImplementedError, match="JX001") as raised:
        compiled([x, y], [first, second], mode=mode_with(on_break="raise"))
    assert isinstance(raised.value, pjl.GraphBreakError) and len(raised.value.breaks) == 2
    for word in ("Unknown", "left", "right", "first", "second"):
        assert word in str(raised.value)


def test_run_time_shape_is_refused():
    x = pt.vector("x", dtype="float64")
    with pytest.raises(pjl.GraphBreakError, match="JX002"):
        compiled([x], pt.arange(x.sum().astype("int64")), mode=mode_with(on_break="raise"))


# Static values


def test_cache_of_static_values_is_bounded():
    n = pt.lscalar("n")
    f = compiled([n], pt.arange(n), mode=mode_with(specializations=2))
    for k in (1, 2, 3, 1, 5):
        np.testing.assert_array_equal(f(k), np.arange(k))
    assert len(f.vm.runner.program._specializations) == 2


def test_checks_off():
    x, i = pt.vector("x", dtype="float64"), pt.lscalar("i")
    f = compiled([x, i], x[i], mode=mode_with(checks="skip"))
    assert f([1.0, 2.0], 1) == 2
    assert np.isnan(f([1.0, 2.0], 5))
