"""Why two kernels, or two launches, are not one: every rule of the search over partitions that can say no has a row."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """A rule that forbids a merge, or a price that does not pay. The value says it in words, after the word of a kind.

    A rule of one kernel is found by `price`, one of a region or launch by `explain`.
    """

    ONCE = "illegal: one is computed once, for as long as the weights stay, the other at every call"
    # one kernel
    STEPS = "illegal: more steps than one kernel has"
    OPERANDS = "arguments: more than one kernel takes"
    ALONE = "illegal: a scatter, merge, selection, copy or custom kernel takes nothing but its operands into its kernel"
    CODE = "illegal: values that are read through several views would be too much code"
    CUT_REDUCTION = "illegal: a long reduction was cut in parts so that all cores work"
    TRANSPOSED = "illegal: results lie in memory along different loops, so one of them would be written in strides"
    TURNED = "illegal: a reduction of what is copied to another order would read it in strides"
    SPREAD = "illegal: a copy with every element several times would compute each of them as often"
    TWO_CONTRACTIONS = "illegal: two contractions in one kernel"
    CONTRACTION_AND_REDUCTION = "illegal: a contraction and another reduction in one kernel"
    CONTRACTION_LOOPS = "illegal: values of other loops than the contraction's results are stored"
    OVERWRITES_OWN_VERSION = "illegal: it would overwrite what the same kernel makes"
    READS_OWN_WRITE = "illegal: it would read what the same kernel writes in place"
    OUT_OF_STEP = "illegal: old values are read at other elements than the one that is overwritten at the time"
    UNUSED = "illegal: a value would be neither stored nor used"
    REDUCTION_IN_CONTRACTION = "illegal: a reduction would run again for every product of a contraction"
    REDUCTION_AGAIN = "illegal: a reduction would run again for what reads it in loops of its own"
    CONTRACTION_AGAIN = "illegal: a contraction's result is used more than once, or along further loops"
    CROSSED_LOOPS = "illegal: results are repeated along loops of which neither are outside the others"
    CROSSED_REDUCTION = "illegal: a reduction cuts across the loops that a repeated result has outside"
    SCANS = "illegal: running combinations along different axes, or used other than as they come"
    # one region
    NO_COMMON_LOOP = "illegal: no loop that all of them can run in parallel"
    OTHER_BLOCK = "illegal: a block reads what another block makes"
    OLD_VALUES = "illegal: a block overwrites what another kernel of the region still has to read"
    NO_CUT = "illegal: their common loops are too short to be cut in blocks"
    SCRATCH = "scratch"
    # one launch
    DEVICES = "illegal: on different devices"
    COPY = "illegal: a copy between devices is no kernel, and one that the caller wrote stays as it is"
    ONE_KERNEL = "illegal: a launch on this device is one kernel"
    BODIES = "illegal: more kernels than one launch holds"
    ARGUMENTS = "arguments"
    AFTER_TAIL = "illegal: it needs what a tail makes"
    STAGED_AFTER = "illegal: what runs before it needs what the other one makes"
    LONG_TAIL = "illegal: a tail runs on one core, and this is work for all of them"
    TAIL_OF_MANY = "illegal: only a kernel alone can be a tail"
    NOT_FIRST = "illegal: only a kernel alone can run before another"
    NOT_READ = "illegal: the other one does not read it"
    NO_COPY = "illegal: it is neither a copy of an operand nor a small table"
    # the price
    PRICE = "priced out"
    CYCLE = "illegal: would close a cycle"
    LATE = "late: it has paid only since other merges were made"

    @property
    def kind(self) -> str:
        """What kind of a no it is: `illegal`, `arguments`, `scratch`, `priced out`, ..."""
        return self.value.partition(":")[0]
