"""`stages`: what a compiled function becomes, stage after stage."""

import re
import time
from itertools import pairwise

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from jax.extend.core import check_jaxpr
from pytensor import wrap_py
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.scan.utils import until

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.passes import Pass, run_passes
from pytensor_jaxpr_linker.report.stages import NodeCode

QUIET = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")


def vector(name="x"):
    """Return a vector input."""
    return pt.vector(name, dtype="float64")


def check_region(stages, region, primitive):
    """Check all stages of a region whose Jaxpr has a primitive."""
    with jax.enable_x64(True):
        check_jaxpr(stages.jaxpr[region])
    assert primitive in {eqn.primitive.name for eqn in stages.jaxpr[region].eqns}
    assert "stablehlo." in stages.stablehlo[region] and stages.hlo[region].startswith("HloModule")
    assert stages.cost[region]["flops"] > 0
    assert stages.memory[region]["argument"] > 0 and stages.memory[region]["output"] > 0
    assert all(stages.timings["regions"][region][name] > 0 for name in ("lower", "trace", "stablehlo", "xla"))


def test_one_program():
    x = vector()
    f = pytensor.function([x], pt.exp(x).sum(), mode="JAXPR")
    stages = pjl.stages(f, [1.0, 2.0])
    check_region(stages, 0, "exp")
    assert len(stages.regions) == 1 and stages.timings["plan"] > 0
    assert stages.graph is f.maker.fgraph
    assert "f64[2]" in str(stages.jaxpr[0])


def test_shapes_of_the_last_call():
    x = vector()
    f = pytensor.function([x], pt.exp(x).sum(), mode="JAXPR")
    f([1.0, 2.0])
    f([1.0, 2.0, 3.0])
    assert "f64[3]" in str(pjl.stages(f).jaxpr[0])


def test_declared_shapes():
    x = pt.vector("x", shape=(4,), dtype="float64")
    assert "tensor<4xf64>" in pjl.stages(pytensor.function([x], pt.exp(x), mode="JAXPR")).stablehlo[0]


def test_unknown_shapes():
    x = vector()
    f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    stages = pjl.stages(f)
    assert stages.graph is f.maker.fgraph
    with pytest.raises(TypeError, match="example arguments"):
        _ = stages.jaxpr


DOORS = {
    "make_jaxpr": pjl.make_jaxpr,
    "stages": lambda f, *args: pjl.stages(f, *args).jaxpr[0],
    "explain": lambda f, *args: pjl.explain(f, args=args),
    "profile": lambda f, *args: pjl.stages(f, *args).profile(1),
}

BAD_EXAMPLES = {
    "many": (([1.0], [2.0], 3), "There are 3 examples, and the function takes 'x', 's'"),
    "rank": (
        (np.ones((2, 2)),),
        r"The input 'x' is a Vector\(float64, shape=\(\?,\)\), but its argument has shape \(2, 2\)",
    ),
    "rank of a shape": ((jax.ShapeDtypeStruct((2, 2), "float64"),), r"argument has shape \(2, 2\)"),
    "shared": (([1.0], 2.0), r"The input 's' is a .*argument has shape \(\)"),
    "complex": (([1j],), "The input 'x' is a .* its example has dtype complex128"),
    "complex shape": ((jax.ShapeDtypeStruct((2,), "complex64"),), "its example has dtype complex64"),
}


@pytest.mark.parametrize(("args", "message"), BAD_EXAMPLES.values(), ids=BAD_EXAMPLES)
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_examples_that_do_not_fit(door, args, message):
    x, s = vector(), pytensor.shared(np.zeros(3), name="s")
    with pytest.raises(TypeError, match=message):
        door(pytensor.function([x], pt.exp(x).sum() + s.sum(), mode="JAXPR"), *args)


@pytest.mark.parametrize(
    "value",
    [[1, 2], np.ones(2, "float32"), jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((2,), "int8")],
)
def test_examples_have_the_dtype_that_the_input_declares(value):
    f = pytensor.function([x := vector()], pt.exp(x), mode="JAXPR")
    assert str(pjl.make_jaxpr(f, value).in_avals[0]) == "float64[2]"
    assert str(pjl.make_jaxpr(f, jax.numpy.ones(2)).in_avals[0]) == "float64[2]"


def test_examples_of_a_value_that_determines_a_shape():
    f = pytensor.function([k := pt.lscalar("k")], pt.arange(k), mode="JAXPR")
    assert pjl.make_jaxpr(f, 2.0).out_avals[0].shape == f(2.0).shape == (2,)
    for wrong in (2.5, np.float64(2), 1e300, np.nan):
        with pytest.raises(TypeError, match=r"'k' is a Scalar.*dtype float64"):
            pjl.make_jaxpr(f, wrong)


@pytest.mark.parametrize("args", [np.ones(3), 1.0, "x"])
def test_examples_for_explain_are_in_a_list(args):
    f = pytensor.function([x := vector()], pt.exp(x), mode="JAXPR")
    with pytest.raises(TypeError, match=r"example arguments in a list or a dict: args=\[x\], not"):
        pjl.explain(f, args=args)


def test_examples_of_typed_keys():
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    f = pytensor.function([], pt.random.normal(rng=rng, return_next_rng=True)[1], mode="JAXPR")
    key = jax.random.key(1)
    assert str(pjl.make_jaxpr(f, key)) == str(pjl.make_jaxpr(f, jax.random.key_data(key))) == str(pjl.make_jaxpr(f))


def test_several_regions():
    x = vector()

    @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
    def hidden(x):
        return x[x > 2]

    s = pytensor.shared(np.zeros(()), name="s")
    f = pytensor.function([x], pt.sin(hidden(pt.exp(x))).sum(), updates={s: s + 1}, mode=QUIET)
    stages = pjl.stages(f, [0.0, 1.0, 2.0])
    assert s.get_value() == 0
    check_region(stages, 0, "exp")
    check_region(stages, 1, "sin")
    assert "f64[2]" in str(stages.jaxpr[1])
    np.testing.assert_allclose(f([0.0, 1.0]), np.sin(np.e))
    assert "f64[1]" in str(pjl.stages(f).jaxpr[1])


def test_static_values():
    n = pt.lscalar("n")
    f = pytensor.function([n], pt.arange(n) * 2, mode="JAXPR")
    assert "i64[3]" in str(pjl.stages(f, 3).jaxpr[0])
    f(5)
    assert "i64[5]" in str(pjl.stages(f).jaxpr[0])


def test_large_constants_generators_and_scalars():
    rng = pytensor.shared(np.random.default_rng(1))
    x, i = vector(), pytensor.scalar.int64("i")
    table = pt.constant(np.arange(20_000.0))
    y = (
        pt.exp(x).sum()
        + pt.exp(table * x[0] - 1e4).sum()
        + pt.random.normal(rng=rng, return_next_rng=True)[1]
        + pt.tensor_from_scalar(i)
    )
    f = pytensor.function([x, i], y, mode="JAXPR")
    stages = pjl.stages(f, [1.0, 2.0], 3)
    check_region(stages, 0, "exp")
    assert "tensor<20000xf64>" in stages.stablehlo[0]


@pytest.mark.filterwarnings("ignore:Profile")
def test_rewrite_time_of_a_profiled_function():
    x = pt.vector("x", shape=(2,), dtype="float64")
    f = pytensor.function([x], pt.exp(x), mode="JAXPR", profile=True)
    f.profile.print_summary = False
    assert pjl.stages(f).timings["rewrite"] > 0


def test_times_are_those_of_the_first_call():
    x = vector()
    f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    f([1.0, 2.0])
    stages = pjl.stages(f)
    (before,) = map(dict, stages.regions[0].specialization.seconds.values())
    assert set(before) == {"lower", "trace", "stablehlo", "xla"}
    assert stages.timings["regions"][0] == before
    _ = stages.hlo
    assert stages.timings["regions"][0] == before


@pytest.mark.parametrize("declared", [True, False])
def test_lowering_is_counted_once(declared, monkeypatch):
    """JAX's trace calls what lowers the region, unless that was done when the function was compiled."""
    import pytensor_jaxpr_linker.run.specialization as module

    lower_region = module.lower_region

    def slow(*args):
        time.sleep(0.2)
        return lower_region(*args)

    monkeypatch.setattr(module, "lower_region", slow)
    x = pt.vector("x", dtype="float64", shape=(2 if declared else None,))
    f = pytensor.function([x], pt.exp(x) + 1, mode="JAXPR")
    for stages in (pjl.stages(f, np.ones(2)), pjl.stages(pjl.as_jax_function([x], pt.exp(x) + 1), np.ones(2))):
        found = stages.timings["regions"][0]
        assert found["lower"] >= 0.2 and 0 < found["trace"] < 0.2


def test_what_is_printed():
    x = vector()
    f = pytensor.function([x], pt.exp(x).sum(), mode="JAXPR")
    stages = pjl.stages(f)
    assert "2 nodes in 1 region: plan " in repr(stages) and "0: region of unknown shapes" in repr(stages)
    stages = pjl.stages(f, [1.0, 2.0])
    assert "0: region for (float64[2]): not lowered yet, not timed" in repr(stages)
    assert not stages.regions[0].specialization.lowered  # printing makes nothing
    f([1.0, 2.0])
    assert re.search(r"0: region for \(float64\[2\]\): 2 equations, lower .* ms, .*xla ", repr(stages))
    assert repr(stages.regions[0]).startswith("<Stages of a region for (float64[2]): 2 equations")


def many_passes():
    """Return the inputs and outputs of a graph that all passes change except two, and except passes for large data."""
    x, counts, a = vector(), pt.lvector("counts"), vector()
    inner = OpFromGraph([a], [pt.exp(a) * 2], name="inner_one")
    doubled = pytensor.scan(lambda s: (s * 2, until(s > 10)), outputs_info=[x.sum()], n_steps=20, return_updates=False)
    return [x, counts], [inner(x), pt.repeat(x, counts), doubled, x[x > 0].sum()]


def test_graph_passes():
    f = pytensor.function(*many_passes(), mode=QUIET)
    records = pjl.stages(f, [1.0, 2.0], [1, 2]).passes.graph
    assert [(r.name, r.changed) for r in records] == [
        ("outer products", False),
        ("inline", True),
        ("sparse", False),
        ("decompose", True),
        ("wide counts", False),
        ("eager numbers", False),
        ("until counts", True),
        ("lanes", True),
        ("sorted rows", False),
        ("column-major constants", False),
        ("column-major inputs", False),
    ]
    assert records[0].before == len(f.maker.fgraph.apply_nodes)
    assert records[1].after == records[1].before + 1  # exp and mul in place of one node
    assert all(r.after == following.before for r, following in pairwise(records))
    assert records[-1].after == len(f.vm.runner.graph.nodes)
    assert all(r.changed or r.before == r.after for r in records) and all(r.seconds > 0 for r in records)
    texts = [r.show() for r in records]
    assert "inner_one" in pytensor.dprint(f.maker.fgraph, file="str") and "inner_one" not in texts[1]
    assert "Repeat{" in texts[2] and "Repeat{" not in texts[3] and "RepeatCounts" in texts[3]
    assert "Minimum" not in texts[5] and "Minimum" in texts[6]  # how many rows of the loop there are
    assert "FillLanes" not in texts[6] and "FillLanes" in texts[7]
    assert repr(records[2]).startswith("<sparse: unchanged, ")


def test_jaxpr_passes(monkeypatch):
    """They belong to the outermost Jaxpr, whose passes run last."""
    import pytensor_jaxpr_linker.report.stages as module

    lower_region = module.lower_region

    def lower(*args):
        lowered = lower_region(*args)
        for name in ("of an inner Jaxpr", "of the region"):
            unchanged = Pass(name, lambda jaxpr, _: jaxpr)
            run_passes([unchanged], lowered.jaxpr, None, parts=lambda jaxpr: jaxpr.eqns, show=str)
        return lowered

    x = vector()
    stages = pjl.stages(pytensor.function([x], pt.exp(x) + 1, mode="JAXPR"), [1.0, 2.0])
    for records in stages.passes.regions:
        assert not records or records[-1].after == len(stages.jaxpr[0].eqns)
    monkeypatch.setattr(module, "lower_region", lower)
    stages = pjl.stages(pytensor.function([x], pt.exp(x) + 1, mode="JAXPR"), [1.0, 2.0])
    ((record,),) = stages.passes.regions
    assert (record.name, record.before, record.after) == ("of the region", 2, 2)
    assert record.show() == str(stages.jaxpr[0])


def test_passes_of_unknown_shapes():
    x = vector()
    stages = pjl.stages(pytensor.function([x], x[x > 0].sum(), mode="JAXPR"))
    assert [r.name for r in stages.graph_passes if r.changed] == ["lanes"]
    with pytest.raises(TypeError, match="example arguments"):
        _ = stages.passes


def test_function_of_another_mode():
    x = vector()
    with pytest.raises(TypeError, match="not compiled with mode JAXPR"):
        pjl.stages(pytensor.function([x], x * 2, mode="FAST_COMPILE"))


def test_code_of_each_node():
    x = vector()
    f = pytensor.function([x], [pt.exp(pt.exp(x) * 2), pt.switch(x > 0, pt.sin(x), 1.0).sum()], mode="JAXPR")
    (region,) = pjl.stages(f, [1.0, 2.0]).regions
    nodes = f.maker.fgraph.toposort()
    code = region.by_node({node: i for i, node in enumerate(nodes)})
    assert code.keys() == set(range(len(nodes)))
    for i, node in enumerate(nodes):
        if str(node.op) == "Exp":
            assert [line.split(" = ")[1].split()[0] for line in code[i].jaxpr] == ["exp"]
            assert len([line for line in code[i].stablehlo if "stablehlo.exponential" in line]) == 1
    assert sum(len(c.jaxpr) for c in code.values()) == len(region.jaxpr.eqns)


def test_code_of_a_node_with_branches():
    from pytensor_jaxpr_linker.base.pytensor_compat import LazyIfElse

    try:
        from pytensor.conditional import ifelse
    except ModuleNotFoundError:
        from pytensor.ifelse import ifelse
    x = vector()
    f = pytensor.function([x], ifelse(x.sum() > 0, pt.exp(x), pt.sin(x)), mode="JAXPR")
    (region,) = pjl.stages(f, [1.0, 2.0]).regions
    nodes = f.maker.fgraph.toposort()
    code = region.by_node({node: i for i, node in enumerate(nodes)})
    for i, node in enumerate(nodes):
        if isinstance(node.op, LazyIfElse):
            assert "cond" in code[i].jaxpr[-1] and "exp" in code[i].jaxpr[-1]
            assert isinstance(code[i], NodeCode) and code[i].stablehlo
