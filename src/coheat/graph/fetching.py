"""Asking the processor for a row of a table before it is needed; numba has no word for it, LLVM has."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 16
"""Edges between asking for a row and using it: enough for the row to arrive, few enough for it to stay."""

LINE_BYTES, LINES = 64, 4
"""A row of 64 floats is four lines of the cache. Asking for more than a row has does no harm."""


@intrinsic  # type: ignore[untyped-decorator]
def fetch_row(_typing: Any, table: Any, row: Any) -> Any:
    """Start loading table[row] into the cache; changes nothing, returns nothing.

    A gather reads rows in an order that no processor can predict, and waits for each of them. Where the next
    rows are known, asking for them some steps ahead hides most of the waiting.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, size, number = signature.args[0], ir.IntType(64), ir.IntType(32)
        array = context.make_array(table)(context, builder, arguments[0])
        position = context.cast(builder, arguments[1], signature.args[1], types.int64)
        row_bytes, _ = cgutils.unpack_tuple(builder, array.strides)
        bytes_pointer = ir.IntType(8).as_pointer()
        start = builder.gep(builder.bitcast(array.data, bytes_pointer), [builder.mul(position, row_bytes)])
        kind = ir.FunctionType(ir.VoidType(), [bytes_pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        for line in range(LINES):
            address = builder.gep(start, [ir.Constant(size, line * LINE_BYTES)])
            builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(table, row), generate
