"""The PYTHON device runs kernel graphs on its own buffers."""

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import DeviceError
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, Op, ParamArg, RangeArg, VariableArg
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Device


def kernel(size):
    i = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, size),), RangeArg(0, AxisKind.LOOP))
    out, source = (mk(Op.PARAM, dtypes.int32, (), ParamArg(slot, size)) for slot in (0, 1))
    variables = [mk(Op.VARIABLE, dtypes.index, (), VariableArg(f"v{k}", 0, 1000)) for k in range(11)]
    shift = sum((v.cast(dtypes.int32) * (k + 1) for k, v in enumerate(variables)), UOp.const(dtypes.int32, 0))
    value = mk(Op.LOAD, dtypes.int32, (mk(Op.INDEX, dtypes.int32, (source, i)),)) + shift
    store = mk(Op.STORE, dtypes.void, (mk(Op.INDEX, dtypes.int32, (out, i)), value))
    return mk(Op.SINK, dtypes.void, (store,), KernelArg("add"))


def test_run_writes_the_buffer_and_orders_variables_by_number():
    out, source = Buffer("PYTHON", dtypes.int32, 5), Buffer("PYTHON", dtypes.int32, 4)
    out.copyin(np.full(5, -1, np.int32))
    source.copyin(np.arange(4, dtype=np.int32))
    values = list(range(11))
    Device["PYTHON"].run(kernel(4), [out, source], values)
    result = np.zeros(5, np.int32)
    out.copyout(result)
    shift = sum(v * (k + 1) for k, v in enumerate(values))
    assert result.tolist() == [shift, shift + 1, shift + 2, shift + 3, -1]


def test_wrong_number_of_values_is_refused():
    buffers = [Buffer("PYTHON", dtypes.int32, 4) for _ in range(2)]
    with pytest.raises(DeviceError, match="11 variables"):
        Device["PYTHON"].run(kernel(4), buffers, [1])


def test_it_says_that_it_does_not_compile():
    with pytest.raises(DeviceError, match="interprets"):
        Device["PYTHON"].compile(None)
