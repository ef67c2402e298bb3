"""Parameters of modules that IREE compiled, and damaged files."""

import os
import sys
import textwrap
import zipfile

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from helpers import run_python

import pytensor_jaxpr_linker as pjl
from jaxpr_artifact import ArtifactError, load, load_iree_module
from jaxpr_artifact.files import seal
from pytensor_jaxpr_linker.artifacts.iree import compile_mlir
from tests.jaxpr_artifact.test_iree_module import WITHOUT_PYTENSOR

pytest.importorskip("iree.compiler")
pytest.importorskip("iree.runtime")


vector = pt.tensor("x", dtype="float64", shape=(3,))


def weighted(rows=2**12, shift=0.0):
    """Return a module with one parameter, and what its function returns for ones."""
    w = pytensor.shared(np.arange(rows * 3.0).reshape(rows, 3) + shift, name="w")
    m = pjl.Module("m", functions={"f": pjl.public([vector], w @ vector)})
    return m, m.f(np.ones(3))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.vmfb"


def test_parameters_that_are_not_there(path):
    m, want = weighted()
    m.save(path, parameters=path.parent / "weights.irpa")
    with pytest.raises(ArtifactError, match=r"Its parameters are in another file, and .*model.irpa is not there"):
        load_iree_module(path)
    for door in (load, load_iree_module):
        found = door(path, parameters=path.parent / "weights.irpa")
        np.testing.assert_array_equal(found.f(np.ones(3)), want)
    other = path.parent / "other.vmfb"
    weighted(2**13)[0].save(other)
    with pytest.raises(ArtifactError, match=r"It has not the parameter w"):
        load_iree_module(path, parameters=other.with_suffix(".irpa"))
    damaged = path.parent / "damaged.irpa"
    damaged.write_bytes(b"no parameters")
    with pytest.raises(ArtifactError, match="IREE can't read the parameters"):
        load_iree_module(path, parameters=damaged)


@pytest.mark.parametrize("kind", [".irpa", ".safetensors"])
def test_parameters_of_other_values(kind, path):
    """Names and sizes fit, and the numbers would be wrong."""
    if kind == ".safetensors":
        pytest.importorskip("safetensors")
    m, want = weighted()
    file = path.with_suffix(kind)
    m.save(path, parameters=file)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(np.float64(99).tobytes(), np.float64(77).tobytes()))
    with pytest.raises(ArtifactError, match=r"The parameter w is not the one .*checksum does not fit") as caught:
        load_iree_module(path)
    assert str(file) in str(caught.value)
    assert load_iree_module(path, verify=False).f(np.ones(3))[33] == want[33] - 22
    file.write_bytes(whole)
    np.testing.assert_array_equal(load_iree_module(path).f(np.ones(3)), want)
    weighted(shift=1.0)[0].save(path.parent / "other.vmfb", parameters=path.parent / f"other{kind}")
    with pytest.raises(ArtifactError, match=r"The file is damaged, or from another save"):
        load_iree_module(path, parameters=path.parent / f"other{kind}")


@pytest.mark.skipif(sys.platform != "linux", reason="memory as Linux counts it")
def test_large_parameters_are_mapped_and_checked(path):
    weighted(2**22)[0].save(path)  # 100 MB
    assert path.stat().st_size < 1e6
    run_python(
        WITHOUT_PYTENSOR
        + textwrap.dedent(
            f"""
            def anonymous():  # memory that is no file's, in MB
                (line,) = [x for x in open("/proc/self/status") if x.startswith("RssAnon")]
                return int(line.split()[1]) / 1e3

            import iree.runtime
            before = anonymous()
            m = load_iree_module({str(path)!r})
            assert anonymous() - before < 30, anonymous() - before
            """
        )
    )


@pytest.mark.skipif(os.name != "posix", reason="POSIX defines these permissions")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660)], ids=oct)
def test_files_have_the_permissions_of_others(mask, mode, path):
    """Whoever may read the module may read its parameters."""
    pytest.importorskip("safetensors")
    before = os.umask(mask)
    try:
        m, _ = weighted()
        m.save(path)
        m.save(path.with_suffix(".mlir"))
    finally:
        os.umask(before)
    modes = {p.suffix: p.stat().st_mode & 0o777 for p in path.parent.iterdir()}
    assert modes == dict.fromkeys([".vmfb", ".irpa", ".mlir", ".json", ".safetensors"], mode)


def test_parameters_in_safetensors_or_in_the_module(path):
    pytest.importorskip("safetensors")
    m, want = weighted()
    m.save(path, parameters=path.with_suffix(".safetensors"))
    np.testing.assert_array_equal(load_iree_module(path).f(np.ones(3)), want)
    assert path.stat().st_size < 2e4
    path.with_suffix(".safetensors").unlink()
    m.save(path, inline_bytes=None)
    np.testing.assert_array_equal(load_iree_module(path).f(np.ones(3)), want)
    assert path.stat().st_size > 2**12 * 24


def test_files_that_are_no_modules(path):
    for data, message in [(b"", "The file is empty"), (b"no module" * 100, "The file has no checksum at its end")]:
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=message):
            load_iree_module(path)
    function = path.parent / "function.mlir"
    pjl.Module("m", functions={"f": pjl.public([vector], vector + 1)}).mlir().save(function)
    compile_mlir(function.read_text(), path)  # a program of somebody else
    with pytest.raises(ArtifactError, match="The file has no checksum at its end"):
        load_iree_module(path)
    seal(path)
    with pytest.raises(ArtifactError, match="The program does not say which functions it has"):
        load_iree_module(path)
    with pytest.raises(ValueError, match="does not end as an archive without a comment"):
        seal(path)
    with pytest.raises(FileNotFoundError):
        load_iree_module(path.parent / "nothing.vmfb")


def test_damage_is_seen_before_anything_runs(path):
    """IREE maps machine code out of the file: a changed bit may end the process."""
    pjl.Module("m", functions={"f": pjl.public([vector], vector + 1)}).save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    with zipfile.ZipFile(path) as archive:  # as before
        assert archive.testzip() is None
    places = [*rng.integers(len(whole), size=150), *range(len(whole) - 100, len(whole))]
    damaged = [bytes([*whole[:i], whole[i] ^ (1 << rng.integers(8)), *whole[i + 1 :]]) for i in places]
    for data in [*damaged, *(whole[:i] for i in places), whole + b"\0"]:
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=r"checksum|empty"):
            load_iree_module(path)
    path.write_bytes(whole)
    np.testing.assert_array_equal(load_iree_module(path).f(np.zeros(3)), 1)


def test_nothing_is_written_if_something_fails(path):
    m = pjl.Module("m", functions={"f": pjl.public([vector], vector + 1)})
    square = pt.tensor("square", dtype="float64", shape=(3, 3))
    eig = pjl.Module("m", functions={"f": pjl.public([square], pt.linalg.eig(square)[0].real)})
    for call, error, message in [
        *[
            (
                lambda target=target: m.save(path, target=target),
                ValueError,
                r"target is one of 'host'.*IREE's llvm-cpu; ",
            )
            for target in ("abacus", "llvm-cpu", None, [], 3, ["host"], [3])
        ],
        (
            lambda: m.save(path, target=["--no-such-flag"]),
            RuntimeError,
            r"refused m: .*'--no-such-flag'\. To do: look at the",
        ),
        (
            lambda: m.save(path, target=["--iree-hal-target-backends=abacus"]),
            RuntimeError,
            r"'abacus' not registered.* To do: look at the flags that you gave it, which `iree-compile --help` lists",
        ),
        (lambda: m.save(path.with_suffix(".mlir"), target="cuda"), TypeError, r"whose names end in .vmfb"),
        (lambda: m.save(path.with_suffix(".txt")), ValueError, r"into a .mlir or .mlirbc file"),
        (
            lambda: eig.save(path),
            NotImplementedError,
            r"eig.* Made at .*jaxpr_artifact/test_iree_module.py:\d+: eig = ",
        ),
        (lambda: weighted()[0].save(path, parameters="weights.npz"), ValueError, r"into .irpa or .safetensors"),
    ]:
        with pytest.raises(error, match=message):
            call()
        assert not list(path.parent.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the targets are for Linux")
def test_other_targets_are_compiled(path):
    pjl.Module("m", functions={"f": pjl.public([vector], pt.sin(vector))}).save(path, target="aarch64")
    assert path.stat().st_size > 1000
    with pytest.raises(ArtifactError, match=r"compiled for 'aarch64'"):
        load_iree_module(path).f(np.ones(3))
