"""`stages(f).profile()`: which nodes of a function take how long. No test asserts a duration."""

import pickle
import platform
import re

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py
from pytensor.compile.mode import Mode

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.report import measure
from pytensor_jaxpr_linker.report.explanation import METADATA
from pytensor_jaxpr_linker.report.marked import Marks, operations_of
from pytensor_jaxpr_linker.report.measure import Event, ProgramRun, called_by, compile_marked, split_count, union_length

QUIET = Mode(pjl.JaxprLinker(pjl.Options(on_break="ignore")), "fast_run")


def vector(name="x"):
    """Return a vector input."""
    return pt.vector(name, dtype="float64")


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def hidden(x):
    """Return the large elements: an Op that runs on the host."""
    return x[x > 2]


def ops(rows):
    """Return the Ops that rows name."""
    return {node.op for row in rows for node in row.nodes}


def check(profile, calls):
    """Check what holds for each profile."""
    rows = profile.rows
    assert [row.microseconds for row in rows] == sorted((row.microseconds for row in rows), reverse=True)
    assert all(row.microseconds >= 0 and row.runs > 0 for row in rows)
    assert [row.share for row in rows] == pytest.approx([row.microseconds / profile.microseconds for row in rows])
    assert 0 <= profile.between < profile.microseconds and profile.call_microseconds > 0 and profile.moving >= 0
    assert set(profile.calls) == {calls}


def test_two_heavy_parts():
    x, v = pt.matrix("x", dtype="float64"), vector("v")
    f = pytensor.function([x, v], [(x @ x) + 1, pt.exp(v).sum()], mode="JAXPR")
    profile = pjl.stages(f, np.ones((150, 150)), np.ones(100_000)).profile(calls=3)
    check(profile, 3)
    assert ops(profile.rows) == {"Dot", "Add", "Exp", "Sum{axes=None}"}
    (row,) = [row for row in profile.rows if "Exp" in ops([row])]
    assert "Dot" not in ops([row]) and "Sum{axes=None}" in ops(profile.rows)
    assert "Exp" not in ops([row for row in profile.rows if "Dot" in ops([row])])
    explained = {node.index: node for node in pjl.explain(f).nodes}
    assert all(explained[node.index] == node for row in profile.rows for node in row.nodes)
    assert profile.rows[0].batch == 0 and not profile.notes


def test_calls_by_default():
    x = vector()
    (count,) = pjl.stages(pytensor.function([x], pt.exp(x), mode="JAXPR"), np.ones(3)).profile().calls
    assert 1 <= count <= 100


def test_program_is_that_of_calls():
    """The marks of nodes change nothing but the metadata of the optimized HLO."""
    x = vector()
    steps = pytensor.scan(lambda s: pt.tanh(s) * 2, outputs_info=[x], n_steps=4, return_updates=False)
    f = pytensor.function([x], [steps[-1], pt.exp(x).sum(), pt.sort(x)], mode="JAXPR")
    f(np.ones(1000))
    runner = f.vm.runner
    with jax.enable_x64(True):
        specialization, args, device = called_by(runner.program, [np.ones(1000)], runner.options)
        marks = Marks({step.node: i for i, step in enumerate(specialization.region.steps)})
        ours = compile_marked(marks, specialization, args, device).as_text()
        theirs = specialization.jitted(device=device).lower(*args).compile().as_text()

    def code(hlo):
        return METADATA.sub("", hlo).partition("\n\n%")[2]

    assert code(ours) == code(theirs) and "node:" in ours and "node:" not in theirs


def test_scan_names_its_inner_nodes():
    x, w = vector(), pt.matrix("w", dtype="float64")

    def step(s, w):
        return pt.sort(pt.tanh(s @ w))

    steps = pytensor.scan(step, outputs_info=[x], non_sequences=[w], n_steps=3, return_updates=False)
    f = pytensor.function([x, w], steps[-1], mode="JAXPR")
    profile = pjl.stages(f, np.ones(300), np.ones((300, 300))).profile(calls=2)
    check(profile, 2)
    (scan,) = {node.op for row in profile.rows for node in row.nodes if node.op.startswith("Scan")}
    inner = {name for row in profile.rows for name in row.inner}
    assert "Tanh" in inner and any(name.startswith("Sort") for name in inner)
    assert all(scan in ops([row]) for row in profile.rows if row.inner)
    assert "inside: " in str(profile)
    # The loop itself is no row where what runs inside it is.
    assert not any(row.operation.startswith("while") for row in profile.rows)
    assert max(row.runs for row in profile.rows) >= 3


def test_host_step_between_regions():
    x = vector()
    f = pytensor.function([x], pt.sin(hidden(pt.exp(x))).sum(), mode=QUIET)
    profile = pjl.stages(f, np.arange(4.0)).profile(calls=2)
    check(profile, 2)
    assert len(profile.calls) == 3
    assert {row.batch for row in profile.rows} == {0, 1, 2}
    (host,) = [row for row in profile.rows if row.operation == "host"]
    assert (host.batch == 1 and [node.op for node in host.nodes] == ["hidden"]) or "hidden" in host.nodes[0].op
    assert "Exp" in ops(row for row in profile.rows if row.batch == 0)
    assert "Sin" in ops(row for row in profile.rows if row.batch == 2)
    assert "host step 1" in str(profile) and "region 2, " in str(profile)


def test_all_on_the_host():
    x = vector()
    f = pytensor.function([x], hidden(x), mode=QUIET)
    profile = pjl.stages(f, np.arange(4.0)).profile(calls=2)
    check(profile, 2)
    (row,) = profile.rows
    assert row.operation == "host" and profile.device == "on the host" and profile.between == 0
    f = pytensor.function([x], pt.exp(x) + 1, mode="JAXPR")
    with pjl.stance("force_host"):
        profile = pjl.stages(f, np.arange(4.0)).profile(calls=2)
    assert [row.operation for row in profile.rows] == ["host"] and ops(profile.rows) == {"Exp", "Add"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_goes_back_to_the_operating_system(monkeypatch):
    x = pt.vector("x", dtype="float64")
    f = pytensor.function([x], pt.cumsum(pt.sort(x) * pt.sort(x**2))[-1], mode="JAXPR")
    arg = np.linspace(0, 1, 50_000)
    assert not pjl.stages(f, arg).profile(calls=2).notes
    monkeypatch.setattr(measure, "LARGEST_KEPT", 300_000)
    (note,) = pjl.stages(f, arg).profile(calls=2).notes
    assert re.match(r"Region 0 has \d MB of temporary arrays, .* MALLOC_MMAP_THRESHOLD_=\d+ and MALLOC_TRIM", note)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**30))
    assert not pjl.stages(f, arg).profile(calls=2).notes


@pytest.mark.parametrize("several", [False, True])
def test_nothing_is_stored(several):
    """Shared variables and generators keep their values, also if host steps and several regions update them."""
    x = vector()
    s = pytensor.shared(np.zeros(3), name="s")
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    next_rng, draw = pt.random.normal(size=(3,), rng=rng, return_next_rng=True)
    y = pt.exp(x).sum() + draw + s
    y = hidden(y).sum() + pt.sin(s).sum() if several else y.sum()
    f = pytensor.function([x], y, updates={s: s + 1, rng: next_rng}, mode=QUIET)
    state = rng.get_value(borrow=True).bit_generator.state
    profile = pjl.stages(f, np.ones(2)).profile(calls=2)
    check(profile, 2)
    np.testing.assert_array_equal(s.get_value(), np.zeros(3))
    assert rng.get_value(borrow=True).bit_generator.state == state
    f(np.ones(2))
    np.testing.assert_array_equal(s.get_value(), np.ones(3))


def test_shared_values_alone_need_no_arguments():
    s = pytensor.shared(np.arange(1000.0), name="s")
    f = pytensor.function([], pt.exp(s).sum(), mode="JAXPR")
    assert "Exp" in ops(pjl.stages(f).profile(calls=1).rows)


def test_donated_memory_and_jax_arrays():
    """A region that may take the memory of an earlier one's results, and arguments on JAX's default device."""
    x = vector()
    with pjl.options(donate=True, on_break="ignore", results="jax"):
        n = pt.exp(x).sum().astype("int64") * 0 + 2
        f = pytensor.function([x], (pt.tile(pt.sin(x), 1) * 2)[: pt.maximum(n, 2)] + pt.alloc(x[0], n), mode="JAXPR")
    given = jax.numpy.arange(2.0)
    profile = pjl.stages(f, given).profile(calls=1)
    assert "Sin" in ops(profile.rows) and "on the device" in profile.device
    np.testing.assert_array_equal(given, [0, 1])


@pytest.mark.filterwarnings("ignore::pytensor_jaxpr_linker.RecompileWarning")
def test_beyond_the_recompile_limit():
    """Calls run a padded program, or the host, and the profile shows that."""
    x = vector()
    for kind in ("pad", "host"):
        with pjl.options(recompile_limit=1, on_recompile_limit=kind):
            f = pytensor.function([x], pt.exp(x) + 1, mode="JAXPR")
        f(np.ones(2))
        f(np.ones(5))
        profile = pjl.stages(f, np.ones(5)).profile(calls=1)
        assert ops(profile.rows) >= {"Exp", "Add"}
        assert {row.operation == "host" for row in profile.rows} == {kind == "host"}
        assert kind == "host" or not any(row.result.startswith("f64[5]") for row in profile.rows if row.nodes)


def test_checks_that_fail():
    x, i = vector(), pt.lscalar("i")
    for checks in ("raise", "defer"):
        with pjl.options(checks=checks):
            f = pytensor.function([x, i], pt.exp(x)[i], mode="JAXPR")
        with pytest.raises(IndexError, match="out of bounds"):
            pjl.stages(f, np.ones(3), 5).profile(calls=1)
        np.testing.assert_allclose(f(np.ones(3), 1), np.e)


def test_what_is_printed():
    x = pt.matrix("x", dtype="float64")
    y = pt.exp(x @ x)
    y.name = "energy"
    profile = pjl.stages(pytensor.function([x], y, mode="JAXPR"), np.ones((50, 50))).profile(calls=2)
    lines = str(profile).splitlines()
    assert re.match(
        r"One run takes [\d.,]+ µs on the CPU client that calls use, operation by operation; .* µs\.", lines[0]
    )
    assert re.match(r"One call of the function, not profiled: [\d.,]+ µs\.", lines[1])
    assert any(line.split()[:3] == ["µs", "share", "runs"] for line in lines)
    assert any(re.search(r"#\d Exp = 'energy'  test_profile\.py:\d+$", line) for line in lines)
    assert any("f64[50,50]" in line for line in lines)
    assert repr(profile) == str(profile) and "Exp" not in profile.text(most=0) and "more" in profile.text(most=0)
    assert ".profile()" in repr(pjl.stages(pytensor.function([x], y, mode="JAXPR")))


def test_rich_table():
    console = pytest.importorskip("rich.console").Console(width=150, file=None, record=True, quiet=False)
    x = vector()
    with console.capture() as captured:
        console.print(pjl.stages(pytensor.function([x], pt.exp(x), mode="JAXPR"), np.ones(3)).profile(calls=1))
    assert "Exp" in captured.get() and "operation" in captured.get()


def test_bad_input():
    x = vector()
    f = pytensor.function([x], pt.exp(x), mode="JAXPR")
    with pytest.raises(TypeError, match=r"none of 'x'.*stages\(f, value"):
        pjl.stages(f).profile()
    f(np.ones(3))
    with pytest.raises(TypeError, match="none of 'x'"):
        pjl.stages(f).profile()
    with pytest.raises(TypeError, match="none of 'x'"):
        pjl.stages(f, jax.ShapeDtypeStruct((3,), "float64")).profile()
    for calls in (0, -1, 1.5, "3", True):
        with pytest.raises(ValueError, match="whole number"):
            pjl.stages(f, np.ones(3)).profile(calls)
    with pytest.raises(ValueError, match="could not convert"):
        pjl.stages(f, "text").profile()
    with pytest.raises(TypeError, match="not compiled with mode JAXPR"):
        pjl.stages(pytensor.function([x], x * 2, mode="FAST_COMPILE"), np.ones(3)).profile()


def test_a_pickle_holds_no_function():
    x = vector()
    stages = pickle.loads(pickle.dumps(pjl.explain(pt.exp(x)).stages))
    with pytest.raises(TypeError, match="call stages"):
        stages.profile()


def test_profiler_that_is_running(tmp_path):
    x = vector()
    stages = pjl.stages(pytensor.function([x], pt.exp(x), mode="JAXPR"), np.ones(3))
    with (
        jax.profiler.trace(tmp_path),
        pytest.raises(RuntimeError, match=r"profile\(\) uses JAX's profiler.*stop_trace"),
    ):
        stages.profile(calls=1)
    assert stages.profile(calls=1).rows


def test_device_that_tells_nothing(monkeypatch):
    """As on platforms whose events name no instruction."""
    import pytensor_jaxpr_linker.report.measure as module

    monkeypatch.setattr(module, "events_of", lambda data, name: iter(()))
    x = vector()
    profile = pjl.stages(pytensor.function([x], pt.exp(x), mode="JAXPR"), np.ones(3)).profile(calls=1)
    assert not profile.rows and profile.microseconds > 0
    assert "recorded no operation of region 0" in profile.notes[0] and profile.notes[0] in str(profile)


def test_jax_functions():
    x = vector()
    fn = pjl.as_jax_function([x], pt.exp(x).sum())
    assert "Exp" in ops(pjl.stages(fn, np.ones(3)).profile(calls=1).rows)


# -- reading HLO -------------------------------------------------------------------------------------------------------


HLO = r"""HloModule jit_f, is_scheduled=true

%fused (param_0: f64[3,1]) -> f64[3] {
  %param_0 = f64[3,1]{1,0} parameter(0)
  %bitcast.1 = f64[3]{0} bitcast(%param_0), metadata={op_name="jit(f)/Dot/node:4/dot_general"}
  %c = f64[] constant(1), metadata={op_name="jit(f)/Const/node:9/c"}
  ROOT %sub.1 = f64[3]{0} subtract(%bitcast.1, %bitcast.1), metadata={op_type="x" op_name="f/Sub \"a}b\"/node:5/sub"}
}

%body (t: (s64[], f64[3])) -> (s64[], f64[3]) {
  %t = (s64[], f64[3]{0}) parameter(0)
  %dot.9 = f64[3,1]{1,0} dot(%t, %t)
  ROOT %fusion.1 = (s64[], /*index=1*/f64[3]{0}) fusion(%dot.9), kind=kLoop, calls=%fused
}

%cond (t.1: (s64[], f64[3])) -> pred[] {
  %t.1 = (s64[], f64[3]{0}) parameter(0)
  ROOT %lt = pred[] compare(%t.1, %t.1), direction=LT, metadata={op_name="jit(f)/Scan/node:7/inner:2/Lt/inner:3/lt"}
}

ENTRY %main (a: f64[3]) -> f64[3] {
  %a = f64[3]{0} parameter(0), metadata={op_name="a"}
  %copy.1 = f64[3]{0} copy(%a)
  %copy.2 = f64[3]{0} copy(%a), control-predecessors={%copy.1}
  %tuple.1 = (s64[], f64[3]{0}) tuple(%copy.1)
  %while.1 = (s64[], f64[3]{0}) while(%tuple.1), condition=%cond, body=%body, metadata={op_name="f/Scan/node:7/while"}
  ROOT %call.1 = f64[3]{0} call(%while.1), to_apply=%cond, branch_computations={%cond, %body}
}
"""


def test_operations_of_hlo():
    found = operations_of(HLO)
    nodes = {name: sorted(o.nodes) for name, o in found.items()}
    assert nodes["sub.1"] == nodes["fusion.1"] == [5]  # what a bitcast names is not computed there, but
    assert nodes["dot.9"] == [4]  # where its operand is
    assert nodes["while.1"] == [5, 7] and nodes["lt"] == [7] and found["lt"].inner == {3}
    assert nodes["copy.1"] == nodes["copy.2"] == []
    assert found["copy.1"].readers == {5, 7} and found["copy.2"].readers == frozenset()
    assert found["while.1"].within >= {"dot.9", "fusion.1", "lt", "sub.1"}
    assert found["call.1"].within == found["while.1"].within and nodes["call.1"] == [5, 7]
    assert found["fusion.1"].result == "(s64[], /*index=1*/f64[3]{0})"


def test_time_between_operations():
    assert union_length([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == 4 and union_length([]) == 0
    run = ProgramRun(5.0, [Event("a", 10, 12), Event("while", 10, 15), Event("b", 13, 14)])
    assert run.between({"while"}) == 2 and run.between(set()) == 0
    assert split_count(7, 3) == [3, 3, 1] and split_count(2, 5) == [2]
