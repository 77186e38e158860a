"""The mixins together: every method that is written in terms of core methods, in one class."""

from __future__ import annotations

from gradlet.ops.alignment import AlignmentMixin
from gradlet.ops.arithmetic import ArithmeticMixin
from gradlet.ops.attention import AttentionMixin
from gradlet.ops.classification import ClassificationMixin
from gradlet.ops.convolution import ConvolutionMixin
from gradlet.ops.differences import DifferencesMixin
from gradlet.ops.digest import DigestMixin
from gradlet.ops.distributions import DistributionsMixin
from gradlet.ops.embedding import EmbeddingMixin
from gradlet.ops.floatbits import FloatBitsMixin
from gradlet.ops.gamma import GammaMixin
from gradlet.ops.masked import MaskedMixin
from gradlet.ops.neural import NeuralMixin
from gradlet.ops.normalization import NormalizationMixin
from gradlet.ops.polynomials import PolynomialMixin
from gradlet.ops.randomslope import RandomSlopeMixin
from gradlet.ops.sampling import SamplingMixin
from gradlet.ops.secondnames import SecondNameMixin
from gradlet.ops.signal import SignalMixin
from gradlet.ops.solving import SolvingMixin
from gradlet.ops.triangles import TrianglesMixin
from gradlet.ops.updates import UpdatesMixin


class ComposedMixin(
    ArithmeticMixin,
    AlignmentMixin,
    AttentionMixin,
    ClassificationMixin,
    ConvolutionMixin,
    DifferencesMixin,
    DigestMixin,
    DistributionsMixin,
    EmbeddingMixin,
    FloatBitsMixin,
    GammaMixin,
    MaskedMixin,
    NeuralMixin,
    NormalizationMixin,
    PolynomialMixin,
    RandomSlopeMixin,
    SamplingMixin,
    SecondNameMixin,
    SignalMixin,
    SolvingMixin,
    TrianglesMixin,
    UpdatesMixin,
):
    """All methods that are the same for whatever the core methods work on. One line a topic, in alphabetical order."""

    __slots__ = ()
