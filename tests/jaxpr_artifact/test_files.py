"""Files that are no artifacts: each gives one clear error before anything runs."""

import ast
import os
import pickle
import struct
import sys
from pathlib import Path

import fuzz_artifacts
import jax
import numpy as np
import pytest

import jaxpr_artifact
from jaxpr_artifact import ArtifactError, load
from jaxpr_artifact.files import ALIGNMENT, aligned, read_container, write_container

PACKAGE = Path(jaxpr_artifact.__file__).parent


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of an artifact."""
    path = tmp_path_factory.mktemp("artifact") / "f.jaxpr"
    fuzz_artifacts.make_artifact(path)
    return path.read_bytes()


@pytest.fixture
def write(tmp_path):
    """Writes a file and returns its path."""

    def write(data):
        path = tmp_path / "file.jaxpr"
        path.write_bytes(data)
        return path

    return write


BAD_FILES = {
    "empty": (lambda c: b"", "is empty"),
    "text": (lambda c: b"import numpy as np\n" * 9, "no artifact"),
    "pickle": (lambda c: pickle.dumps(np.ones(99)), "no artifact"),
    "zip": (lambda c: b"PK\x03\x04" + c, "was not written by this package"),
    "text-mode": (lambda c: c.replace(b"\r\n", b"\n"), "no artifact"),
    "magic": (lambda c: c[:8], "ends in its first bytes"),
    "prefix": (lambda c: c[:56], "truncated: 56 bytes do not hold a header"),
    "half": (lambda c: c[: len(c) // 2], "truncated: it ends before the end of the member"),
    "all-but-one": (lambda c: c[:-1], "truncated: it ends before the end of the member"),
    "longer": (lambda c: c + b"\0", "1 bytes follow its end"),
    "newer": (lambda c: c[:8] + struct.pack("<Q", 2) + c[16:], "version 2 of the format.*Install a newer pytensor"),
    "older": (lambda c: c[:8] + struct.pack("<Q", 0) + c[16:], "version 0 of the format.*Export it again"),
    "header": (lambda c: c.replace(b'"weights"', b'"Weights"'), "header is damaged"),
    "huge": (lambda c: c[:16] + b"\xff" * 8 + c[24:], "do not hold a header"),
    "last-byte": (lambda c: c[:-1] + bytes([c[-1] ^ 1]), "is damaged: its checksum"),
}


@pytest.mark.parametrize(("change", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(change, message, content, write):
    path = write(change(content))
    with pytest.raises(ArtifactError, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value) and again.remedy


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere.jaxpr")
    with pytest.raises(OSError):
        load(tmp_path)


def changed_header(change):
    """Return a function of a file that changes its header, and writes the checksum that fits."""

    def changed(content):
        header, rest = fuzz_artifacts.split(content)
        change(header)
        return fuzz_artifacts.with_header(header, rest)

    return changed


def with_update(header):
    """Make the second output, of shape (3000,), the next value of the state, of shape (3,)."""
    header["state"][0].update(output=1)
    header["outputs"].pop()


BAD_HEADERS = {
    "no-part": (lambda h: h.pop("checks"), "header has not the parts"),
    "another-part": (lambda h: h.update(code="x"), "header has not the parts"),
    "type": (lambda h: h.update(is_bare=1), "header.is_bare is 1"),
    "dtype": (lambda h: h["state"][0].update(dtype="object"), "weights has the dtype 'object'"),
    "dimension": (lambda h: h["arguments"][0].update(shape=["n^999999999"]), "x has a dimension"),
    "name": (lambda h: h["arguments"][0].update(name="import os"), "'import os' is no name"),
    "twice": (lambda h: h["arguments"][1].update(name="x"), "have one name"),
    "program": (lambda h: h["programs"].pop("call"), "the programs are"),
    "other-inputs": (lambda h: h["programs"]["call"]["inputs"].pop(), "takes or returns something else"),
    "member": (lambda h: h["programs"]["call"].update(member="../secret"), "'../secret' is not in the file"),
    "kept": (lambda h: h["programs"]["call"].update(kept=[99]), "keeps inputs that it has not"),
    "convention": (lambda h: h["programs"]["call"].update(calling_convention=99), "version 99 of JAX's calling"),
    "array": (lambda h: h["state"][0].update(shape=[4]), "'weights' is not in the file as the header says"),
    "places": (lambda h: h.update(members={}), "does not say where"),
    "offset": (lambda h: h["members"][1].__setitem__(1, 0), "misplaces"),
    "key": (lambda h: h.update(key_of=[0, None]), "'output0' does not follow the key that it says"),
    "keys": (lambda h: h.update(key_of=[None]), "does not say of each output which key it follows"),
    "update": (with_update, "the update of 'weights' has another shape than the state"),
    "number": (lambda h: h.update(constraints=["n >= 02"]), "'n >= 02' is no constraint"),
    "nested": (lambda h: h["outputs"][0].update(shape=["(" * 500]), "has a dimension"),
    "constraint": (lambda h: h.update(constraints=["__import__('os')"]), "JAX does not read the shapes"),
}


@pytest.mark.parametrize(("change", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_bad_headers(change, message, content, write):
    with pytest.raises(ArtifactError, match=message):
        load(write(changed_header(change)(content)))


def test_a_header_without_what_newer_versions_say(content, write):
    assert load(write(changed_header(lambda h: h.pop("key_of"))(content))).header.key_of == ()


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"a": NaN}', b'{"a" : 1}', b"[" * 100_000, b"\xff", b'{"b":1,"a":1}'])
def test_headers_that_are_no_json(text, content, write):
    _, rest = fuzz_artifacts.split(content)
    with pytest.raises(ArtifactError, match="not written as this format writes it"):
        load(write(fuzz_artifacts.sealed(text, rest)))


def test_any_change_is_seen():
    outcomes = fuzz_artifacts.fuzz(1500, fuzz_artifacts.any_bytes, seed=1)
    assert all(o == "unchanged" or o.startswith("refused") for o in outcomes), outcomes
    assert outcomes["unchanged"] < 100


def test_headers_with_fitting_checksums():
    """No exception but the loader's own comes out of it."""
    outcomes = fuzz_artifacts.fuzz(1500, fuzz_artifacts.header_with_fitting_checksum, seed=1)
    assert sum(times for o, times in outcomes.items() if o.startswith("refused")) > 1000, outcomes


def test_checks_of_a_type_that_python_does_not_have(content, write):
    def other(header):
        header["checks"][0]["type"] = "__import__"

    loaded = load(write(changed_header(other)(content)))
    with pytest.raises(ValueError, match="out of bounds"):
        loaded(np.ones(3), 7)


def with_program(content, program):
    """Return a file with another program in place of the first, and checksums that fit."""
    header, _ = fuzz_artifacts.split(content)
    members = {name: content[offset : offset + size] for name, offset, size, _ in header.pop("members")}
    return header, {**members, header["programs"]["call"]["member"]: program}


def test_a_program_that_calls_python_is_refused(content, tmp_path):
    def call(x, *_):
        return jax.ffi.ffi_call("xla_ffi_python_cpu_callback", jax.ShapeDtypeStruct((), "float32"))(x)

    allowed = [jax.export.DisabledSafetyCheck.custom_call("xla_ffi_python_cpu_callback")]
    exported = jax.export.export(jax.jit(call), disabled_checks=allowed)(np.float32(1))
    write_container(tmp_path / "f", *with_program(content, exported.mlir_module_serialized))
    with pytest.raises(ArtifactError, match=r"calls Python: .*callback.*do not use it"):
        load(tmp_path / "f")


def test_a_program_that_is_none(content, tmp_path):
    write_container(tmp_path / "f", *with_program(content, b"no program"))
    with pytest.raises(ArtifactError, match=r"'programs/call\.mlirbc' is none that JAX"):
        load(tmp_path / "f")


def test_arrays_are_verified_unless_told_otherwise(content, write):
    header, _ = fuzz_artifacts.split(content)
    offset = next(offset for name, offset, _, _ in header["members"] if name.startswith("arrays/state"))
    path = write(content[:offset] + b"\1" + content[offset + 1 :])
    with pytest.raises(ArtifactError, match="'arrays/state/0' is damaged"):
        load(path)
    assert load(path, verify=False).state["weights"][0] != 0


def test_members_are_aligned(tmp_path):
    members = {"a": b"x" * 70, "empty": b"", "b": np.arange(5.0), "c": b""}
    write_container(tmp_path / "f", {"some": "header"}, members)
    found = read_container(tmp_path / "f")
    assert found.header == {"some": "header"}
    assert {name: bytes(data) for name, data in found.members.items()} == {n: bytes(d) for n, d in members.items()}
    for data in found.members.values():
        assert len(data) == 0 or np.frombuffer(data, np.uint8).ctypes.data % ALIGNMENT == 0
    assert aligned(1) == aligned(64) == 64
    assert os.listdir(tmp_path) == ["f"]


def test_a_failed_export_leaves_the_old_file(tmp_path):
    write_container(tmp_path / "f", {}, {"a": b"old"})
    with pytest.raises(TypeError):
        write_container(tmp_path / "f", {"no": object()}, {"a": b"new"})
    assert bytes(read_container(tmp_path / "f").members["a"]) == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_the_package_imports_jax_and_numpy_alone():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (path.name, node.module) != ("first_use.py", "importlib"):
                found.add(str(node.module).partition(".")[0])
                assert not str(node.module).startswith("jax._src")
    # `first_use.py` imports modules of the package by a table. IREE's runtime is imported with the first of its files.
    assert found - sys.stdlib_module_names == {"iree", "jax", "numpy", "jaxpr_artifact"}
    assert not found & {"pickle", "marshal", "importlib", "subprocess", "ctypes"}
