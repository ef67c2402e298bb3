"""The chunks of transitions in which chains advance."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytensor_jaxpr_linker.pymc import sample
from pytensor_jaxpr_linker.pymc.chains import programs
from pytensor_jaxpr_linker.pymc.chains.programs import (
    CALL_SECONDS,
    GROWTH,
    MOST_TRANSITIONS,
    ChunkLengths,
    longest_chunk,
)

SHORT = {"tune": 30, "chains": 2, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}


@given(st.integers(0, 3000), st.integers(1, 256), st.lists(st.floats(1e-7, 10), min_size=1, max_size=5))
def test_lengths_add_up_and_keep_to_the_time(total, most, seconds_of_a_transition):
    """Times of transitions may change from chunk to chunk."""
    lengths, found, seconds = ChunkLengths(total, most), [], None
    while length := lengths(len(found)):
        longest = GROWTH * found[-1] if found else 1
        assert 1 <= length <= min(most, longest)
        assert length == 1 or length * seconds <= CALL_SECONDS
        assert lengths(len(found)) == length  # another chain asks for the same chunk
        seconds = seconds_of_a_transition[len(found) % len(seconds_of_a_transition)]
        found.append(length)
        lengths.took(length, length * seconds)
    assert sum(found) == total
    assert lengths(len(found)) == 0


@pytest.mark.parametrize(
    ("size", "chains", "expected"),
    [(1, 1, MOST_TRANSITIONS), (10_000, 1, 52), (10_000, 8, 6), (10**6, 1, 1), (10, 256, 48), (0, 1, MOST_TRANSITIONS)],
)
def test_room_for_transitions_is_bounded_by_their_bytes(size, chains, expected):
    assert longest_chunk({"x": np.broadcast_to(0.0, (4, size))}, chains) == expected


@pytest.mark.parametrize("method", ["parallel", "vectorized", "sequential"])
@pytest.mark.parametrize("sampler", ["blackjax", "numpyro", "mclmc", "chees"])
def test_draws_do_not_depend_on_the_lengths_of_chunks(monkeypatch, sampler, method):
    pytest.importorskip("numpyro" if sampler == "numpyro" else "blackjax")
    if sampler == "chees" and method != "vectorized":
        pytest.skip("its chains are one program")
    with pm.Model() as model:
        pm.Normal("x", [0.0, 1.0], [1.0, 0.1])
    arguments = {**SHORT, "model": model, "sampler": sampler, "chain_method": method}
    if sampler == "chees":
        arguments |= {"chains": 4}
    found = []
    for seconds in (np.inf, 1e-9):  # as many as fit, and one by one
        monkeypatch.setattr(programs, "CALL_SECONDS", seconds)
        found.append(sample(40, **arguments))
    for name in ("posterior", "sample_stats"):
        for key, x in found[0][name].data_vars.items():
            np.testing.assert_array_equal(x, found[1][name][key])


def test_initvals_of_another_shape_are_refused_before_the_chains_run():
    """The declared type leaves the length open, the dims do not."""
    with pm.Model(coords={"a": range(3)}) as model:
        z = pm.HalfNormal("z", dims="a")
        pm.Normal("y", z.sum(), 1, observed=1.0)
    found = sample(20, model=model, initvals={"z": np.full(3, 0.5)}, **SHORT)
    assert found.posterior["z"].shape == (2, 20, 3)
    with pytest.raises(ValueError, match=r"initvals gives 'z_log__' the shape \(5,\), but in this model it has \(3,\)"):
        sample(20, model=model, initvals={"z": np.full(5, 0.5)}, **SHORT)
