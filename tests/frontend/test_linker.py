"""Mode JAXPR as a PyTensor mode: storage, shared variables, generators, errors and options."""

import pickle
import sys
from importlib.util import find_spec

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.io import In
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options
from pytensor_jaxpr_linker.frontend.function import register


def compiled(inputs, outputs, mode="JAXPR", **kwargs):
    """Compile with mode JAXPR."""
    return pytensor.function(inputs, outputs, mode=mode, **kwargs)


def mode_with(**options):
    """Return mode JAXPR with options."""
    return Mode(JaxprLinker(Options(**options)), "fast_run")


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
def test_pickles_of_older_versions_say_that_they_are(name, monkeypatch):
    """A pickled function names one of these first; its modules have moved since."""
    # pytest looks for doctests in the module, and leaves it half imported.
    monkeypatch.delitem(sys.modules, f"pytensor_jaxpr_linker.{name.split()[0]}", raising=False)
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
