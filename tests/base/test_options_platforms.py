"""What is planned and lowered for another platform than this machine's."""

from __future__ import annotations

import jax
import jax.export
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pytensor_jaxpr_linker as pjl
from pytensor_jaxpr_linker.base.options import for_platforms
from tests.jaxpr.portable.test_rewrite import FAST

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

X = np.array([[2.0, 1.0], [0.5, 3.0]])


def eigenvalues():
    """JAX lacks decompositions of general matrices on TPUs."""
    x = pt.dmatrix("x")
    return x, pt.linalg.eig(x)[0].real


def test_rules_ask_the_platform_that_is_lowered_for():
    x, t = eigenvalues()
    warned = pytest.warns(pjl.GraphBreakWarning, match="no such decomposition for the platform tpu")
    with for_platforms(["tpu"]), warned:
        f = pytensor.function([x], t + 1, mode="JAXPR")
    np.testing.assert_allclose(f(X), pytensor.function([x], t + 1, mode="FAST_COMPILE")(X))
    with for_platforms(["tpu", "cpu"]):
        assert len(pjl.explain(t, [x]).batches) == 1


def test_export_of_a_function_that_was_compiled_where_a_rule_is_missing(tmp_path):
    """As on a machine with a TPU: the host runs a node there that the platform of the file has a rule for."""
    x, t = eigenvalues()
    with for_platforms(["tpu"]), pjl.options(on_break="ignore"):
        f = pytensor.function([x], t, mode="JAXPR")
    loaded = pjl.export(f, path=tmp_path / "eig.jaxpr", platforms=["cpu"], dims={"x": "2, 2"})
    np.testing.assert_allclose(loaded(x=X), f(X))


def test_export_for_a_platform_without_a_rule(tmp_path):
    x, t = eigenvalues()
    with pytest.raises(pjl.GraphBreakError, match="no such decomposition for the platform tpu"):
        pjl.export([x], [t], path=tmp_path / "eig.jaxpr", platforms=["tpu"], dims={"x": "2, 2"})
    with pytest.raises(NotImplementedError, match=r"JAX can't lower .* for tpu: .*platforms=\('cpu',\) leaves it out"):
        pjl.export([x], [t], path=tmp_path / "eig.jaxpr", platforms=["cpu", "tpu"], dims={"x": "2, 2"})


def decompositions_in_loops(qr):
    """Return what JAX has for CPUs, and with `qr` what it has for CPUs and GPUs."""
    x, y = pt.dmatrix("x"), pt.dtensor3("y")
    solution = pt.linalg.solve_sylvester(x, x + 1, x @ x)
    lyapunov = pt.linalg.solve_continuous_lyapunov(x, x)
    direct = pt.linalg.solve_discrete_lyapunov(x / 9, x, method="bilinear")
    schur = [*pt.linalg.schur(x), *pt.linalg.schur(y, output="complex")]
    pivoted = [*pt.linalg.qr(x, pivoting=True), *pt.linalg.qr(x, mode="raw")] if qr else []
    return [x, y], [*schur, solution, pt.grad(solution.sum(), x), lyapunov, direct, *pivoted]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_decompositions_that_jax_lacks_are_loops(platform):
    """Schur forms, Sylvester's and Lyapunov's equations; on TPUs also QR with pivoting and in raw mode."""
    inputs, outputs = decompositions_in_loops(qr=platform == "tpu")
    f = pytensor.function(inputs, outputs, mode="JAXPR")
    told = pjl.explain(f, args=[X, np.stack([X, X.T])], platform=platform)
    assert (told.platform.batches, told.platform.missing) == (1, ())
    fn = pjl.as_jax_function(inputs, outputs)
    shapes = [jax.ShapeDtypeStruct(s, "float64") for s in ((2, 2), (2, 2, 2))]
    with jax.enable_x64(True):
        text = jax.export.export(jax.jit(fn), platforms=[platform])(*shapes).mlir_module()
    assert "lapack" not in text and "stablehlo.while" in text


def test_loops_have_the_values_of_lapack():
    """What is planned for a TPU runs here."""
    inputs, outputs = decompositions_in_loops(qr=True)
    values = [X, np.stack([X, X.T])]
    want = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(*values)
    t, z = want[:2]
    fn = pjl.as_jax_function(inputs, outputs)
    with for_platforms(["tpu"]), jax.enable_x64(True):
        assert "schur" not in str(jax.make_jaxpr(fn)(*values))
        found = [np.asarray(x) for x in jax.jit(fn, compiler_options=FAST)(*values)]
    np.testing.assert_allclose(found[1] @ found[0] @ found[1].T, z @ t @ z.T, rtol=1e-12)
    for x, y in zip(found[4:], want[4:], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_export_for_a_gpu_from_this_machine(tmp_path):
    x = pt.dmatrix("x")
    y = pt.linalg.cholesky(x @ x.T + 1).sum() + pt.exp(x).sum()
    loaded = pjl.export([x], y, path=tmp_path / "f.jaxpr", platforms=["cuda"], dims={"x": "2, 2"}, vjp_order=1)
    assert "cuda" in str(loaded) and "cpu" not in str(loaded).split("programs")[0].split("runs on")[-1]


def test_explain_for_another_platform():
    x, t = eigenvalues()
    f = pytensor.function([x], t + pt.exp(x), mode="JAXPR")
    f(X)
    told = pjl.explain(f, platform="tpu")
    assert (len(told.batches), told.platform.batches) == (1, 2)
    assert (
        "Eig" in told.platform.missing[0]
        and "runs on the host: JAX has no such decomposition" in told.platform.missing[0]
    )
    assert any(note.startswith("float64: a TPU") for note in told.platform.notes)
    assert "On the platform tpu: 2 batches" in str(told)
    assert pjl.explain(f, platform="cpu").platform.missing == ()
    assert told.as_dict()["platform"]["platform"] == "tpu"
    with pytest.raises(ValueError, match="platform is one of 'cpu', 'cuda', 'rocm', 'tpu', not 'vulkan'"):
        pjl.explain(f, platform="vulkan")


def test_explain_finds_primitives_without_a_lowering():
    """No rule knows which primitives lack a lowering: JAX is asked."""
    x = pt.dmatrix("x")
    f = pytensor.function([x], pt.linalg.svd(x)[1] + pt.gammainc(2.0, x[0, 0]), mode="JAXPR")
    told = pjl.explain(f, args=[X], platform="tpu")
    assert told.platform.missing == () and "emulates it by pairs of float32" in str(told)
    assert "each operation has a lowering" in str(told)
    unknown = pjl.explain(pt.exp(x), platform="cuda")
    assert "give example arguments" in str(unknown) and "lowering" not in str(unknown)


def large_product():
    x, r = pt.matrix("x", shape=(2**16, 32), dtype="float64"), pt.vector("r", shape=(2**16,), dtype="float64")
    return [x, r], x.T @ r, "reduce_sum"


def grouped_sum():
    """Neighbours are of one group; the added rows are not cheap, so that a CPU computes it before."""
    x = pt.vector("x", shape=(4096,), dtype="float64")
    return [x], pt.zeros(4)[np.repeat(np.arange(4), 1024)].inc(pt.digamma(x)), "optimization_barrier"


@pytest.mark.parametrize("make", [large_product, grouped_sum])
def test_what_helps_a_cpu_costs_a_gpu_nothing(make):
    """No blocks of a matrix whose products are added, and no pass over memory before rows are added to groups."""
    inputs, output, what = make()

    def primitives(*platforms):
        with for_platforms(platforms):
            (jaxpr,) = pjl.stages(pytensor.function(inputs, output, mode="JAXPR")).jaxpr
            return {eqn.primitive.name for eqn in jaxpr.eqns}

    assert what in primitives("cpu")
    assert what not in primitives("cuda") | primitives("cpu", "cuda") | primitives("tpu")
