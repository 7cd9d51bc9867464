"""The Triton kernel of `fused`: (M, K) by (N, K), in tiles, each finished while it is in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from fasteomt.ops.early_kernels import let_next_start, wait_for_inputs

# Numbers that differ between layers and problems; a kernel for each of their divisors isn't wanted.
COUNTS = ["M", "rotated", "tokens", "extras", "patches", "span", "odd", "even", "crops", "full", "tails",
          "columns", "first_helper", "helpers"]  # fmt: skip


@triton.jit
def _gelu(x: tl.tensor) -> tl.tensor:
    """Exact GELU: max(x, 0) - u P(X > u), u = |x|, X standard normal.

    log2 P(X > u) is nearly a parabola. With a polynomial fitted on [0, 5.6], which falls beyond, the result
    errs by 7e-7 at most, and from x = -3 on by 7e-5 of itself: much less than 16-bit rounding, in far fewer
    instructions than erf takes, for which the tensor cores would wait.
    """
    u = tl.abs(x)
    p = -0.0004733093 * u + 0.0070845573
    p = p * u - 0.051827382
    p = p * u - 0.45999244
    p = p * u - 1.1507878
    p = p * u - 1.0000377
    return tl.maximum(x, 0.0) - u * tl.exp2(p)


@triton.jit
def _angles(
    first: tl.tensor, column: tl.tensor, rotation: tl.tensor, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """sin and cos (ROWS, HEAD_DIM / 2) of rows from `first` on; no turn for extras and in tiles of values."""
    sin, cos, rotated, tokens, extras, patches = rotation
    row = first + tl.arange(0, ROWS)
    crop = row // tokens
    patch = row - crop * tokens - (crop & 1) * extras
    turned = ((patch >= 0) & (patch < patches) & (column < rotated))[:, None]
    at = patch[:, None] * (HEAD_DIM // 2) + tl.arange(0, HEAD_DIM // 2)[None, :]
    return tl.load(sin + at, turned, 0.0), tl.load(cos + at, turned, 1.0)


@triton.jit
def _turn(
    y: tl.tensor, column: tl.tensor, angles: tl.tensor, rotated: tl.tensor, HEAD_DIM: tl.constexpr
) -> tl.tensor:
    """Rotate the queries and keys among y's columns, which are whole heads from `column` on."""
    ROWS: tl.constexpr = y.shape[0]
    HEADS: tl.constexpr = y.shape[1] // HEAD_DIM
    sin, cos = angles[0][:, None, :], angles[1][:, None, :]
    inside = (column + tl.arange(0, HEADS) * HEAD_DIM < rotated)[None, :, None]
    a, b = tl.split(tl.reshape(y, (ROWS, HEADS, HEAD_DIM // 2, 2)))
    pairs = tl.join(tl.where(inside, a * cos - b * sin, a), tl.where(inside, b * cos + a * sin, b))
    return tl.reshape(pairs, (ROWS, HEADS * HEAD_DIM))


@triton.jit
def _halves(y: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The left and the right half of y's columns."""
    parts = tl.reshape(y, (y.shape[0], 2, y.shape[1] // 2))
    return tl.split(tl.permute(parts, (0, 2, 1)))


@triton.jit
def _finish(
    y: tl.tensor, first: tl.tensor, column: tl.tensor, end: tl.tensor, out: tl.tensor, factors: tl.tensor,
    angles: tl.tensor, rotated: tl.tensor, N: tl.tensor, PART: tl.constexpr, EPILOGUE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """From y at row `first` and column `column` to `out`: a descriptor, or a pointer to rows before `end`.

    In parts of PART columns, which need few registers and a small buffer.
    """
    if y.shape[1] > PART:
        HALF: tl.constexpr = y.shape[1] // 2
        left, right = _halves(y)
        scales = (None, None) if factors is None else _halves(factors)
        _finish(left, first, column, end, out, scales[0], angles, rotated, N, PART, EPILOGUE, HEAD_DIM)
        _finish(
            right, first, column + HALF, end, out, scales[1], angles, rotated, N, PART, EPILOGUE, HEAD_DIM
        )
    else:
        if EPILOGUE == "gelu":
            y = _gelu(y)
        elif EPILOGUE == "rope":
            y = _turn(y, column, angles, rotated, HEAD_DIM)
        elif EPILOGUE == "residual":
            y *= factors
        if end is None:
            if EPILOGUE == "residual":
                out.atomic_add([first, column], y)  # in L2, and once an element: sums repeat bit by bit
            else:
                out.store([first, column], y.to(out.dtype))
        else:
            row, columns = tl.arange(0, y.shape[0]), column + tl.arange(0, y.shape[1])
            at = out + first.to(tl.int64) * N + (row[:, None] * N + columns[None, :])
            mine = (row < end - first)[:, None] & (columns < N)[None, :]
            if EPILOGUE == "residual":
                y += tl.load(at, mine, 0.0)
            tl.store(at, y.to(out.dtype.element_ty), mine)


@triton.jit
def _tile(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, scale: tl.tensor, rotation: tl.tensor, first: tl.tensor,
    column: tl.tensor, end: tl.tensor, out: tl.tensor, N: tl.tensor, K: tl.tensor, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, EPILOGUE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """ROWS rows from `first` on by BLOCK_N columns from `column` on.

    What the epilogue needs is loaded before the products, while their first operands are under way.
    """
    columns = column + tl.arange(0, BLOCK_N)
    acc = tl.zeros((ROWS, BLOCK_N), tl.float32)
    if bias is not None:
        acc += tl.load(bias + columns, columns < N, 0.0)[None, :]
    factors = tl.load(scale + columns, columns < N, 0.0)[None, :] if EPILOGUE == "residual" else None
    angles = _angles(first, column, rotation, ROWS, HEAD_DIM) if EPILOGUE == "rope" else None
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(x.load([first, k]), weight.load([column, k]).T, acc)
    _finish(acc, first, column, end, out, factors, angles, rotation[2], N, PART, EPILOGUE, HEAD_DIM)


@triton.jit(do_not_specialize=COUNTS)
def linear_kernel(
    x: tl.tensor, x_tail: tl.tensor, weight: tl.tensor, out_tile: tl.tensor, out: tl.tensor, bias: tl.tensor,
    scale: tl.tensor, sin: tl.tensor, cos: tl.tensor, M: tl.tensor, N: tl.tensor, K: tl.tensor,
    rotated: tl.tensor, tokens: tl.tensor, extras: tl.tensor, patches: tl.tensor, span: tl.tensor,
    odd: tl.tensor, even: tl.tensor, crops: tl.tensor, full: tl.tensor, tails: tl.tensor, columns: tl.tensor,
    first_helper: tl.tensor, helpers: tl.tensor, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, TAIL_M: tl.constexpr, GROUP: tl.constexpr, PART: tl.constexpr,
    EPILOGUE: tl.constexpr, HEAD_DIM: tl.constexpr,
) -> None:  # fmt: skip
    """Descriptors x (BLOCK_M, BLOCK_K), x_tail (TAIL_M, BLOCK_K), weight (BLOCK_N, BLOCK_K) and out_tile
    (BLOCK_M, PART); out (M, N); fp32 vectors bias and scale, or None; fp32 tables sin and cos.

    A crop is `tokens` rows, of which `patches` are turned: after `extras` others in odd crops, before them in
    even ones. Tiles see a crop as `span` rows: `full` tiles of BLOCK_M, after `odd` rows in odd crops; two
    crops have `tails` tail tiles of TAIL_M, from row `even` on, which cover their 2 * `odd` other rows.
    """
    let_next_start()
    wait_for_inputs()
    program, programs = tl.program_id(0), tl.num_programs(0)
    rotation = (sin, cos, rotated, tokens, extras, patches)
    row_tiles = full * crops
    for tile in range(program, row_tiles * columns, programs):
        group = tile // (GROUP * columns) * GROUP
        size = min(row_tiles - group, GROUP)
        within = tile - group * columns
        row_tile = group + within % size
        column = within // size * BLOCK_N
        crop = row_tile // full
        first = crop * span + (crop & 1) * odd + (row_tile - crop * full) * BLOCK_M
        _tile(
            x, weight, bias, scale, rotation, first, column, None, out_tile, N, K,
            BLOCK_M, BLOCK_N, BLOCK_K, PART, EPILOGUE, HEAD_DIM,
        )  # fmt: skip

    helper = (program + programs - first_helper) % programs
    all_tails = (crops + 1) // 2 * tails * columns
    for tail in range(helper, tl.where(helper < helpers, all_tails, 0), helpers):
        column = tail % columns * BLOCK_N
        tile = tail // columns
        start = tile // tails * 2 * span + even
        first = start + tile % tails * TAIL_M
        end = min(start + 2 * odd, M)
        _tile(
            x_tail, weight, bias, scale, rotation, first, column, end, out, N, K,
            TAIL_M, BLOCK_N, BLOCK_K, PART, EPILOGUE, HEAD_DIM,
        )  # fmt: skip
