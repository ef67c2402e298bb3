"""The limits of emission rules, and where they differ from PyTensor: for the support table and the tests."""

from typing import NamedTuple

OF_TWO = "Of two sparse matrices if all entries are at constant places; else the host finds the places faster."

#: Sentences by the names of classes, as `base.rules.class_name` gives them.
LIMITATIONS: dict[str, str] = {
    "pytensor.sparse.basic.GetItem2d": "With constant steps of at least 1.",
    "pytensor.sparse.basic.GetItemList": "Of entries at constant places; else their number depends on numbers.",
    "pytensor.sparse.math.StructuredDot": OF_TWO,
    "pytensor.sparse.math.StructuredDotGradCSC": OF_TWO,
    "pytensor.sparse.math.StructuredDotGradCSR": OF_TWO,
    "pytensor.sparse.math.TrueDot": OF_TWO,
    "pytensor.tensor.linalg.decomposition.schur.Schur": "Not with `sort`. JAX has it on CPUs; elsewhere it is a loop.",
    "pytensor.tensor.linalg.decomposition.eigen.Eig": "Not on TPUs.",
    "pytensor.tensor.linalg.decomposition.eigen.Eigh": "Not of complex matrices, whose eigenvectors PyTensor declares real. With the default driver eigenvectors may"
    " have the other sign.",
    "pytensor.tensor.linalg.decomposition.qr.QR": "With pivoting or in raw mode a loop on TPUs.",
    "pytensor.tensor.linalg.solvers.lstsq.Lstsq": "Not of a vector, whose solution PyTensor declares a matrix, nor of"
    " complex numbers, whose solution it declares real.",
    "pytensor.tensor.linalg.solvers.linear_control.SolveSylvester": "On a GPU or TPU, the Schur forms are loops.",
    "pytensor.tensor.linalg.solvers.linear_control.SolveDiscreteARE": "Its `QZ` runs on the host.",
    "pytensor.tensor.extra_ops.Unique": "Not along an axis of a matrix, and not of complex numbers.",
    "pytensor.tensor.math.Max": "Not of complex numbers.",
    "pytensor.tensor.math.Min": "Not of complex numbers.",
    "pytensor.tensor.random.basic.BinomialRV": "Not for a number of trials that is no integer type.",
    "pytensor.tensor.random.basic.HyperGeometricRV": "Not for counts that are no integer type.",
    "pytensor.tensor.random.basic.MultinomialRV": "Not for one number of trials that is no integer type.",
    "pytensor.tensor.random.basic.IntegersRV": "Not for bounds that are no integer type.",
    "pytensor.tensor.random.basic.PermutationRV": "Not for several numbers at once.",
    "pytensor.tensor.random.basic.ChoiceWithoutReplacement": "Not for several numbers at once.",
    "pytensor.tensor.blockwise.Blockwise": "If its core Op has a rule for batches.",
}


class SymbolicLimit(NamedTuple):
    """Which lengths of an Op can't be symbolic dimensions of `jax.export`, and the error, as a regular expression."""

    sentence: str
    error: str


NO_FFT = SymbolicLimit("The length that is transformed can't be symbolic.", "FFT with non-constant fft_length")

ONE_LENGTH = SymbolicLimit("The length of the signal or of the kernel can't be symbolic.", "can't decide how many taps")

#: By the names of classes. All other Ops that become equations take any lengths.
SYMBOLIC: dict[str, SymbolicLimit] = {
    "pytensor.tensor.fft.RFFTOp": NO_FFT,
    "pytensor.tensor.fft.IRFFTOp": NO_FFT,
    "pytensor.tensor.fourier.Fourier": NO_FFT,
    "pytensor.tensor.signal.conv.Convolve1d": ONE_LENGTH,
    "pytensor.tensor.signal.conv.Convolve2d": ONE_LENGTH,
    "pytensor.tensor.linalg.decomposition.qr.QR": SymbolicLimit(
        'Of symbolic lengths JAX has to know which is larger, as by `constraints=["m >= n"]`.',
        "comparison .* is inconclusive",
    ),
}


class IreeLimit(NamedTuple):
    """What of an Op IREE does not run, and whether it runs the rest."""

    sentence: str
    in_part: bool = False


#: By the names of classes. All other Ops that become equations run on IREE.
IREE: dict[str, IreeLimit] = {
    "pytensor.tensor.linalg.decomposition.eigen.Eig": IreeLimit("Not by IREE: nothing stands for LAPACK's `geev`."),
    "pytensor.tensor.math.Sum": IreeLimit("By IREE not of empty complex arrays.", in_part=True),
    "pytensor.tensor.math.Prod": IreeLimit("By IREE not of empty complex arrays.", in_part=True),
}
