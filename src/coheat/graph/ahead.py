"""Ask the processor for a row of a table before it is needed.

A gather reads rows in an order no processor can guess, and waits for each of them. Where the next rows to
read are known, asking for them some steps ahead hides most of the waiting.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_BYTES, LINES = 64, 4
"""A row of 64 floats is four lines of the cache. Asking for more than a row has does no harm."""


@intrinsic  # type: ignore[untyped-decorator]
def fetch_row(_typing: Any, table: Any, row: Any) -> Any:
    """Start loading table[row] into the cache; changes nothing, returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        (row_bytes, _) = cgutils.unpack_tuple(builder, array.strides)
        number, size = ir.IntType(32), ir.IntType(64)
        place = builder.mul(context.cast(builder, arguments[1], signature.args[1], types.int64), row_bytes)
        pointer = ir.IntType(8).as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer, number, number, number]),
            "llvm.prefetch.p0",
        )
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        for line in range(LINES):
            at = builder.add(place, ir.Constant(size, line * LINE_BYTES))
            address = builder.gep(builder.bitcast(array.data, pointer), [at])
            builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(table, row), generate
