"""What the compiler does not find by itself: loading a row of a table before it is needed, and products of
small matrices whose sums stay in the processor's registers.

Vectors of eight floats are what most processors have; LLVM makes do with what it finds.
`benchmarks/kernel_ablation.py` measures what either is worth.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
"""Floats in a vector."""

LINE_BYTES, LINES = 64, 4
"""A row of 64 floats is four lines of the cache. Asking for more than a row has does no harm."""

ROWS, VECTORS = 6, 2
"""Of the small products: 6 x 16 sums are what the registers of a processor hold beside their factors."""

SIZE, FLOAT, BYTES = ir.IntType(64), ir.FloatType(), ir.IntType(8).as_pointer()
FUSED = ("contract",)
"""A product and a sum may become one operation."""


class _Code:
    """Writes the instructions of one function; `which` is the number of an argument."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any):
        self.context, self.builder = context, builder
        self.kinds, self.arguments = signature.args, arguments

    def array(self, which: int) -> Any:
        return self.context.make_array(self.kinds[which])(self.context, self.builder, self.arguments[which])

    def number(self, which: int) -> Any:
        return self.context.cast(self.builder, self.arguments[which], self.kinds[which], types.int64)

    def load(self, start: Any, place: Any, vector: ir.VectorType) -> Any:
        return self.builder.load(self._vector(start, place, vector), align=4)

    def store(self, value: Any, start: Any, place: Any) -> None:
        self.builder.store(value, self._vector(start, place, value.type), align=4)

    def _vector(self, start: Any, place: Any, vector: ir.VectorType) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [place]), vector.as_pointer())

    def repeated(self, value: Any, vector: ir.VectorType) -> Any:
        """A float in all places of a vector."""
        nothing = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.Constant(SIZE, 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(first, nothing, zeros)

    def plus_product(self, total: Any, left: Any, right: Any) -> Any:
        return self.builder.fadd(total, self.builder.fmul(left, right, flags=FUSED), flags=FUSED)


def constant(value: int) -> ir.Constant:
    return ir.Constant(SIZE, value)


@intrinsic  # type: ignore[untyped-decorator]
def fetch_row(_typing: Any, table: Any, row: Any) -> Any:
    """Start loading table[row] into the cache; changes nothing, returns nothing.

    A gather reads rows in an order no processor can guess, and waits for each of them. Where the next rows to
    read are known, asking for them some steps ahead hides most of the waiting.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, number = _Code(context, builder, signature, arguments), ir.IntType(32)
        array = code.array(0)
        row_bytes, _ = cgutils.unpack_tuple(builder, array.strides)
        start = builder.gep(builder.bitcast(array.data, BYTES), [builder.mul(code.number(1), row_bytes)])
        kind = ir.FunctionType(ir.VoidType(), [BYTES, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        for line in range(LINES):
            builder.call(prefetch, [builder.gep(start, [constant(line * LINE_BYTES)]), read, keep, data])
        return context.get_dummy_value()

    return types.void(table, row), generate


def small_product(adds: bool) -> Any:
    """A function for compiled code: c (ROWS x 16) = a (ROWS x depth) times b (depth x 16).

    The matrices lie in flat arrays of floats, given by where they begin (`_at`) and how far it is from row to
    row (`_row`) or, in a, from column to column (`a_step`). With `adds`, the product is added to c.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def product(_typing: Any, a, a_at, a_row, a_step, b, b_at, b_row, c, c_at, c_row, depth):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code, vector = _Code(context, builder, signature, arguments), ir.VectorType(FLOAT, LANES)
            a_start, b_start, c_start = (code.array(which).data for which in (0, 4, 7))
            a_at, a_row, a_step, b_at, b_row = (code.number(which) for which in (1, 2, 3, 5, 6))
            c_at, c_row, depth = (code.number(which) for which in (8, 9, 10))
            before = builder.block
            loop, after = builder.append_basic_block("product"), builder.append_basic_block("store")
            builder.branch(loop)

            builder.position_at_end(loop)
            k = builder.phi(SIZE)
            k.add_incoming(constant(0), before)
            sums = [builder.phi(vector) for _ in range(ROWS * VECTORS)]
            b_place = builder.add(b_at, builder.mul(k, b_row))
            b_parts = [
                code.load(b_start, builder.add(b_place, constant(part * LANES)), vector)
                for part in range(VECTORS)
            ]
            a_place, new = builder.add(a_at, builder.mul(k, a_step)), []
            for row in range(ROWS):
                place = builder.add(a_place, builder.mul(constant(row), a_row))
                factor = code.repeated(builder.load(builder.gep(a_start, [place])), vector)
                for part in range(VECTORS):
                    new.append(code.plus_product(sums[row * VECTORS + part], factor, b_parts[part]))
            for total, sum_so_far in zip(sums, new, strict=True):
                total.add_incoming(ir.Constant(vector, [0.0] * LANES), before)
                total.add_incoming(sum_so_far, loop)
            following = builder.add(k, constant(1))
            k.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)

            builder.position_at_end(after)
            for row in range(ROWS):
                for part in range(VECTORS):
                    place = builder.add(c_at, builder.mul(constant(row), c_row))
                    place = builder.add(place, constant(part * LANES))
                    value = new[row * VECTORS + part]
                    if adds:
                        value = builder.fadd(value, code.load(c_start, place, vector), flags=FUSED)
                    code.store(value, c_start, place)
            return context.get_dummy_value()

        return types.void(a, a_at, a_row, a_step, b, b_at, b_row, c, c_at, c_row, depth), generate

    return product
