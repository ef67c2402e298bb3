"""Where options come from, and what keeps them."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker import JaxprLinker, Options
from pytensor_jaxpr_linker import options as options_context
from pytensor_jaxpr_linker.base import logs
from pytensor_jaxpr_linker.base.options import resolve


class Unknown(Op):
    """An Op that nobody has a rule for."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + 1


def mode_with(**options):
    """Return mode JAXPR with options."""
    return Mode(JaxprLinker(Options(**options)), "fast_run")


def compiled(mode="JAXPR", op=lambda x: x * 2):
    """Return a small function."""
    x = pt.vector("x", dtype="float64")
    return pytensor.function([x], op(x), mode=mode)


def options_of(f):
    """Return the options that a function was compiled with."""
    return f.maker.linker.options


# Values


@pytest.mark.parametrize(
    "named",
    [
        {"results": "torch"},
        {"on_break": "fail"},
        {"on_recompile_limit": "bucket"},
        {"specializations": 0},
        {"recompile_limit": 0},
        {"recompile_limit": 2.5},
        {"recompile_limit": True},
        {"checks": True},
        {"donate": None},
        {"allow_traced_leaves": "no"},
        {"fullgraph": True, "on_break": "warn"},
    ],
    ids=str,
)
def test_bad_values_are_refused(named):
    with pytest.raises(ValueError, match=next(iter(named))):
        Options(**named)
    with pytest.raises(ValueError, match=next(iter(named))), pjl.options(**named):
        pass


def test_unknown_option():
    with pytest.raises(TypeError, match="speed"):
        Options(speed=3)


def test_options_are_values():
    assert Options(checks="skip") == Options(checks="skip") != Options()
    assert hash(Options()) == hash(Options(checks="raise"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().checks = False
    assert pickle.loads(pickle.dumps(Options(results="jax"))).named() == {"results": "jax"}


@pytest.mark.parametrize(
    "copied",
    [
        dataclasses.replace,
        copy.copy,
        copy.deepcopy,
        lambda options: pickle.loads(pickle.dumps(options)),
        pytest.param(
            lambda options: copy.replace(options),
            marks=pytest.mark.skipif(sys.version_info < (3, 13), reason="new in Python 3.13"),
        ),
    ],
    ids=["replace", "copy", "deepcopy", "pickle", "copy.replace"],
)
def test_copies_name_what_was_named(copied, monkeypatch):
    options = copied(Options("jax", checks="skip"))
    assert options == Options("jax", checks="skip")
    assert options.named() == {"results": "jax", "checks": "skip"}
    monkeypatch.setenv("PYTENSOR_JAXPR_RECOMPILE_LIMIT", "8")
    with pjl.options(checks="defer", donate=False):
        f = compiled(Mode(JaxprLinker(options), "fast_run"))
    assert options_of(f) == Options("jax", checks="skip", recompile_limit=8, donate=False)


def test_replaced_options_are_named():
    assert dataclasses.replace(Options(checks="skip"), donate=True).named() == {"checks": "skip", "donate": True}
    again = dataclasses.replace(dataclasses.replace(Options(), recompile_limit=3), specializations=4)
    assert again.named() == {"recompile_limit": 3, "specializations": 4}
    with pytest.raises(ValueError, match="checks must be"):
        dataclasses.replace(Options(), checks="no")


@pytest.mark.parametrize(
    ("options", "replaced", "on_break"),
    [
        (Options(fullgraph=True), {"on_break": "log"}, "log"),
        (Options(on_break="log"), {"fullgraph": True}, "raise"),
        (Options(on_break="raise"), {"fullgraph": False}, "warn"),
        (Options(fullgraph=True), {"donate": False}, "raise"),
    ],
)
def test_replaced_fullgraph(options, replaced, on_break):
    found = dataclasses.replace(options, **replaced)
    assert (found.on_break, found.fullgraph) == (on_break, on_break == "raise")
    assert found.named() == {"on_break": on_break} | {k: v for k, v in replaced.items() if k == "donate"}


@pytest.mark.parametrize(
    "named", [{"fullgraph": True}, {"on_break": "raise"}, {"fullgraph": True, "on_break": "raise"}]
)
def test_fullgraph_is_one_mechanism(named):
    options = Options(**named)
    assert options.fullgraph and options.on_break == "raise"
    x, y = (pt.vector(n, dtype="float64") for n in ("left", "right"))
    with pytest.raises(pjl.GraphBreakError) as raised:
        pytensor.function([x, y], [Unknown()(x), Unknown()(y)], mode=mode_with(**named))
    assert len(raised.value.breaks) == 2


# Precedence


def test_linker_context_environment_default(monkeypatch):
    monkeypatch.setenv("PYTENSOR_JAXPR_SPECIALIZATIONS", "7")
    monkeypatch.setenv("PYTENSOR_JAXPR_RECOMPILE_LIMIT", "8")
    monkeypatch.setenv("PYTENSOR_JAXPR_RESULTS", "JAX")
    mode = mode_with(results="numpy")
    with pjl.options(recompile_limit=9, results="jax", checks="skip"):
        f = compiled(mode)
    assert options_of(f) == Options(specializations=7, recompile_limit=9, results="numpy", checks="skip")
    assert options_of(compiled()) == Options(specializations=7, recompile_limit=8, results="jax")


def test_contexts_nest_and_end():
    with pjl.options(recompile_limit=3, checks="skip"):
        with pjl.options(recompile_limit=4):
            inner = compiled()
        outer = compiled()
    assert options_of(inner) == Options(recompile_limit=4, checks="skip")
    assert options_of(outer) == Options(recompile_limit=3, checks="skip")
    with pytest.raises(KeyError), pjl.options(checks="skip"):
        raise KeyError
    assert options_of(compiled()) == Options()


def test_a_context_says_what_it_is_and_can_be_entered_again():
    context = pjl.options(results="jax")
    assert repr(context) == "<options(results='jax'), for a with block>"
    assert repr(pjl.stance("force_host")) == "<stance('force_host'), for a with block>"
    assert repr(pjl.count_transfers()) == "<count_transfers(), for a with block>"
    with context, context:
        assert resolve().results == "jax"
    assert context(resolve)().results == "jax"
    assert context(resolve).__name__ == "resolve" and resolve().results == "numpy"
    with pytest.raises(ZeroDivisionError), context:
        1 / 0  # noqa: B018
    assert resolve().results == "numpy"


def test_a_context_is_entered_in_several_threads():
    context, both = pjl.options(results="jax"), Barrier(2)

    def enter(first):
        with context:
            both.wait(10)
            assert resolve().results == "jax"
            if first:
                both.wait(10)
        if not first:
            both.wait(10)
        return resolve().results

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(enter, [True, False])) == ["numpy", "numpy"]


def test_fullgraph_in_layers(monkeypatch):
    monkeypatch.setenv("PYTENSOR_JAXPR_FULLGRAPH", "true")
    with pytest.raises(pjl.GraphBreakError):
        compiled(op=Unknown())
    with pjl.options(on_break="ignore"):
        np.testing.assert_array_equal(compiled(op=Unknown())([1.0]), [2.0])
    with pjl.options(fullgraph=False), pytest.warns(pjl.GraphBreakWarning):
        compiled(op=Unknown())


def test_context_is_of_one_thread():
    found = []
    with pjl.options(checks="skip"):
        thread = threading.Thread(target=lambda: found.append(options_of(compiled())))
        thread.start()
        thread.join()
    assert found == [Options()]


@pytest.mark.parametrize(
    ("variable", "text", "match"),
    [
        ("PYTENSOR_JAXPR_ON_BREAK", "explode", "'warn', 'log', 'ignore' or 'raise'"),
        ("PYTENSOR_JAXPR_CHECKS", "maybe", "'raise', 'defer' or 'skip'"),
        ("PYTENSOR_JAXPR_DONATE", "maybe", "1 or 0"),
        ("PYTENSOR_JAXPR_RECOMPILE_LIMIT", "-3", "whole number"),
        ("PYTENSOR_JAXPR_SPEED", "1", "sets no option.*PYTENSOR_JAXPR_ON_BREAK"),
    ],
)
def test_bad_environment(monkeypatch, variable, text, match):
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError, match=f"{variable}.*{match}"):
        compiled()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("off", False), (" True ", True)])
def test_environment_spells_truth(monkeypatch, text, value):
    monkeypatch.setenv("PYTENSOR_JAXPR_DONATE", text)
    assert options_of(compiled()).donate is value


def test_environment_of_a_fresh_process():
    code = """
    import pytensor, pytensor.tensor as pt
    import pytensor_jaxpr_linker
    x = pt.vector("x", dtype="float64")
    print(type(pytensor.function([x], x + 1, mode="JAXPR")([1.0])).__name__)
    """
    assert run_python(code, PYTENSOR_JAXPR_RESULTS="jax").strip() == "ArrayImpl"


def test_module_and_context_manager_have_one_name():
    from pytensor_jaxpr_linker.base.options import Options as same

    assert same is Options and options_context is pjl.options


# Copies


def test_copies_and_pickles_keep_the_options_of_their_context():
    s = pytensor.shared(np.zeros(2), name="s")
    with pjl.options(results="jax", recompile_limit=3):
        f = pytensor.function([], s + 1, updates={s: s + 1}, mode="JAXPR")
    with pjl.options(results="numpy"):
        for g in (f, f.copy(), f.copy(delete_updates=True), pickle.loads(pickle.dumps(f))):
            assert options_of(g) == Options(results="jax", recompile_limit=3)
            assert isinstance(g(), jax.Array)


def test_options_do_not_stick_to_the_users_graph():
    x = pt.vector("x", dtype="float64")
    y = x * 2
    with pjl.options(results="jax"):
        pytensor.function([x], y, mode="JAXPR")
    assert isinstance(pytensor.function([x], y, mode="JAXPR")([1.0]), np.ndarray)


# on_break


@pytest.mark.parametrize("how", ["ignore", "log", "warn"])
def test_on_break(how, caplog):
    caplog.set_level(logging.WARNING, "pytensor_jaxpr_linker.breaks")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = compiled(mode_with(on_break=how), Unknown())
        for n in (1, 2, 3):
            np.testing.assert_array_equal(f(np.ones(n)), np.full(n, 2))
    assert [w.category for w in caught] == [pjl.GraphBreakWarning] * (how == "warn")
    assert len(caplog.records) == (how == "log")
    for text in [*(str(w.message) for w in caught), *caplog.messages]:
        assert "JX001" in text and "Unknown" in text
    if how == "warn":
        assert caught[0].filename == __file__


def test_warning_once_though_planned_anew():
    """A rule that finds in a call that it can't emit its node makes a new plan: only the new break is told of."""

    class Late(Unknown):
        pass

    @pjl.emits(Late)
    def emit_Late(op, node, b, x):
        from pytensor_jaxpr_linker.base.errors import CannotEmit

        raise CannotEmit("it does not take this length")

    x = pt.vector("x", dtype="float64")
    with pytest.warns(pjl.GraphBreakWarning) as first:
        unknown = Unknown()(x)
        f = pytensor.function([x], [unknown, Late()(pt.exp(x))], mode="JAXPR")
    with pytest.warns(pjl.GraphBreakWarning) as second:
        f(np.ones(2))
    assert "Unknown" in str(first[0].message) and "Late" not in str(first[0].message)
    assert "Late" in str(second[0].message) and "Unknown" not in str(second[0].message)
    f(np.ones(3))


# Traced leaves


class ThirdParty(Unknown):
    """An Op with a JAX function of somebody else."""


@pytest.fixture
def registered():
    wide = jax.config.jax_enable_x64
    from pytensor.link.jax.dispatch import jax_funcify  # sets the flag

    jax.config.update("jax_enable_x64", wide)
    jax_funcify.register(ThirdParty)(lambda op, **kwargs: lambda x: x + 1)


@pytest.mark.parametrize("inner", [False, True])
def test_allow_traced_leaves(registered, inner):
    from pytensor.conditional import ifelse

    x = pt.vector("x", dtype="float64")
    y = ifelse(x.sum() > 0, ThirdParty()(pt.exp(x)), x) if inner else ThirdParty()(pt.exp(x))
    f = pytensor.function([x], y, mode=mode_with(fullgraph=True))
    with pytest.raises(pjl.GraphBreakError, match=r"JX00[14].*ThirdParty"):
        pytensor.function([x], y, mode=mode_with(fullgraph=True, allow_traced_leaves=False))
    g = pytensor.function([x], y, mode=mode_with(on_break="ignore", allow_traced_leaves=False))
    for sign in (1, -1):
        values = np.array([0.5, 1.0]) * sign
        np.testing.assert_allclose(f(values), g(values))
    pytensor.function([x], y, mode=mode_with(fullgraph=True))  # nothing of that is remembered
    pjl.as_jax_function([x], [y])
    with pytest.raises(pjl.GraphBreakError), pjl.options(allow_traced_leaves=False):
        pjl.as_jax_function([x], [y])


# Documentation


def test_every_option_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Options):
        assert f"`{field.name}`" in text and f"`PYTENSOR_JAXPR_{field.name.upper()}`" in text
    for name in ("breaks", "recompiles", "guards", "jaxpr", "hlo", "plan", "timing"):
        assert f"`pytensor_jaxpr_linker.{name}`" in text


def test_logs_by_the_environment(monkeypatch, capfd):
    package = logging.getLogger("pytensor_jaxpr_linker")
    monkeypatch.setattr(package, "handlers", [])
    monkeypatch.setattr(logs.plan, "level", logging.NOTSET)
    monkeypatch.setenv(logs.LOGS_VARIABLE, "plan")
    logs.show_logs("Plan, ")
    assert [logs.plan.level, len(package.handlers)] == [logging.DEBUG, 1]
    x = pt.vector("x", dtype="float64")
    pytensor.function([x], pt.exp(x), mode="JAXPR")
    assert "[pytensor_jaxpr_linker.plan] " in capfd.readouterr().err
    logs.plan.setLevel(logging.NOTSET)
    with pytest.raises(ValueError, match=r"PYTENSOR_JAXPR_LOGS names no log 'plans': did you mean 'plan'\?"):
        logs.show_logs("plans")
    logs.show_logs("")
    with pytest.raises(ValueError, match=r"PYTENSOR_JAXPR_LOGS names no file: write report=FILE\.html"):
        logs.show_logs("report=")
    assert len(package.handlers) == 1
