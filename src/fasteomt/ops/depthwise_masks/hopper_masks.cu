// For Hopper (sm_90a): depthwise 3 x 3 convolution, LayerNorm over channels, and products with all queries;
// ops/depthwise_masks says what that is, and how the norm is undone into the products.
//
// A block has a tile of TILE_Y x 16 pixels of one crop, and a block of queries. The last warpgroup copies, 64
// channels at a time, the tile's pixels with their neighbours, the taps and the queries into a ring of STAGES. The
// first two warpgroups each have LINES lines of the tile, and of these a warp has 4 columns: a lane goes down them
// with two channels, so that each pixel is read and widened once for the three lines that it adds to, and what a
// warp reads at once is a whole row of shared memory. Convolved pixels are left, rounded, where tensor cores take
// them: 4 lines of 16 are the 64 rows of a product, whose columns are queries and one of ones. It runs while the
// next 4 lines are convolved, and then the sums of it are all that is left of these channels, besides squares.
//
// Instructions and shared memory bound the time about equally: with PARTS 2 an element takes 16 of the former, 10 of
// them products, and 16 bytes to or from the latter.
//
// Pixels lie in the order of ops/grid.py. A line of them has more dimensions than boxes of the copy engine, so that
// each pixel is asked for by its own address, in pieces of 16 bytes: an instruction in twenty.
//
// Defined by who compiles this:
//   BLOCK_Q       columns of a product, a multiple of 8 from 16 on
//   ONES          which of them is of ones: the others before it, or all but its last 8, are queries
//   PARTS         products of a warpgroup, 1 or 2: of 4 lines each
//   STAGES        of the ring
//   OUT_WIDE      1 if results are fp32, 0 if they are of TYPE
//   CONSUMER_REGISTERS, PRODUCER_REGISTERS
//                 of a thread that computes and of one that copies
//   TYPE          bf16 or f16, as PTX writes it
//   BLOCK_...     operands of a product, as ops/hopper.py writes them, whose sums are `acc`

#include "hopper_masks_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int SLICE = 64, ROW_BYTES = SLICE * 2; // channels at a time
constexpr int GROUPS = 2, CONSUMERS = 128 * GROUPS, COPIERS = 128;
constexpr int TILE_X = 16, STRIP_X = TILE_X / 4, PART_LINES = 4, LINES = PARTS * PART_LINES, TILE_Y = GROUPS * LINES;
constexpr int LOADED_X = TILE_X + 2, LOADED = LOADED_X * (TILE_Y + 2); // pixels with their neighbours
constexpr int LAST_ROWS = 8;                                           // of queries, that are copied on their own

constexpr int PART_BYTES = 64 * ROW_BYTES, GROUP_BYTES = 2 * PART_BYTES;
constexpr int QUERY_BYTES = BLOCK_Q * ROW_BYTES, PIXEL_BYTES = LOADED * ROW_BYTES, TAP_BYTES = 9 * SLICE * 4;
constexpr int STAGE_BYTES = (QUERY_BYTES + PIXEL_BYTES + TAP_BYTES + 1023) / 1024 * 1024;
constexpr int SQUARE_BYTES = TILE_X * TILE_Y * 4, SUM_BYTES = BLOCK_Q * 4, TABLE_BYTES = (LOADED * 4 + 7) / 8 * 8;

struct Job {
    const unsigned char* x; // (crops x size^2, channels), in the order of ops/grid.py
    const float* taps;      // (9, channels)
    const float* sums;      // (2, crops x queries)
    void* out;              // (crops, queries, size, size)
    int crops, side, level; // size = side << level
    int channels, queries;
    int own_queries;        // of a block, but maybe the last
    float eps, weight;      // weight: of a channel in a mean
};

struct Tile {
    int size, crop, y, x; // first pixel
    int first, queries;   // of this block

    __device__ __forceinline__ explicit Tile(const Job& job) {
        size = job.side << job.level;
        const int across = (size + TILE_X - 1) / TILE_X, down = (size + TILE_Y - 1) / TILE_Y;
        const int blocks = (job.queries + job.own_queries - 1) / job.own_queries;
        const int tile = blockIdx.x / blocks;
        x = tile % across * TILE_X;
        y = tile / across % down * TILE_Y;
        crop = tile / across / down;
        first = blockIdx.x % blocks * job.own_queries;
        queries = min(job.own_queries, job.queries - first);
    }
};

// What one coordinate of a pixel adds to its row within the crop, see ops/grid_kernels.py.
__device__ __forceinline__ int share(int coordinate, int cells, int step, int level) {
    int part = (coordinate >> level) * cells;
#pragma unroll 1
    for (int bit = level - 1; bit >= 0; --bit) part = 4 * part + step * (coordinate >> bit & 1);
    return part;
}

__device__ __forceinline__ void produce(
    const TensorMap& queries, const TensorMap& last_queries, const Job& job, const Tile& tile, u32 ring, u32 table,
    u32 full, u32 empty
) {
    constexpr int CHUNKS = ROW_BYTES / 16, AT_ONCE = COPIERS / CHUNKS, TIMES = (LOADED + AT_ONCE - 1) / AT_ONCE;
    constexpr u32 OUTSIDE = ~0u;
    const int thread = threadIdx.x - CONSUMERS, chunk = thread % CHUNKS;
    const u32 row_bytes = job.channels * 2;
    // Each finds out where a few pixels are, and then gets to know those of which it copies chunks.
#pragma unroll 1
    for (int pixel = thread; pixel < LOADED; pixel += COPIERS) {
        const int y = tile.y - 1 + pixel / LOADED_X, x = tile.x - 1 + pixel % LOADED_X;
        const bool inside = y >= 0 && y < tile.size && x >= 0 && x < tile.size;
        const u32 row = share(y, job.side, 2, job.level) + share(x, 1, 1, job.level);
        store_shared_word(table + pixel * 4, inside ? row * row_bytes : OUTSIDE);
    }
    warpgroup_sync(GROUPS);
    u32 offsets[TIMES];
#pragma unroll
    for (int i = 0; i < TIMES; ++i) {
        const int pixel = thread / CHUNKS + i * AT_ONCE;
        offsets[i] = pixel < LOADED ? load_shared_word(table + pixel * 4) : OUTSIDE;
    }
    const unsigned char* from =
        job.x + static_cast<long long>(tile.crop) * tile.size * tile.size * row_bytes + chunk * 16;
    const float* taps = job.taps;
    const int first_row = tile.crop * (job.queries + 1);
    Cursor at;
    wait_for_inputs();
    for (int channel = 0; channel < job.channels; channel += SLICE) {
        const u32 stage = ring + at.stage * STAGE_BYTES, barrier = full + 8 * at.stage;
        const u32 pixels = stage + QUERY_BYTES;
        barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
        if (thread == 0) {
            barrier_arrive_expecting(barrier, QUERY_BYTES);
            copy_box(stage, queries, channel, first_row + tile.first, barrier);
            // These have the row of ones among them, which is the last of the crop's, at its column.
            const int last = job.queries - ONES + BLOCK_Q - LAST_ROWS;
            copy_box(stage + QUERY_BYTES - LAST_ROWS * ROW_BYTES, last_queries, channel, first_row + last, barrier);
        }
#pragma unroll
        for (int i = 0; i < TIMES; ++i) {
            const bool inside = offsets[i] != OUTSIDE;
            if (i == TIMES - 1 && thread / CHUNKS + i * AT_ONCE >= LOADED) continue;
            copy_chunk(pixels + (thread + i * COPIERS) * 16, from + (inside ? offsets[i] : 0), inside);
        }
#pragma unroll
        for (int i = 0; i < TAP_BYTES / 16; i += COPIERS) {
            const int piece = i + thread, tap = piece / (SLICE / 4), channels = piece % (SLICE / 4) * 4;
            if (piece >= TAP_BYTES / 16) continue;
            copy_chunk(pixels + PIXEL_BYTES + piece * 16, taps + tap * job.channels + channels, true);
        }
        arrive_when_copied(barrier);
        from += ROW_BYTES;
        taps += SLICE;
        at.advance();
    }
}

// Convolves a strip's slice of channels, and hands over whole parts to `finish`.
template <typename Finish>
__device__ __forceinline__ void convolve(
    u32 pixels, u32 taps, u32 out, int buffer, float (&squares)[LINES * STRIP_X], const Finish& finish
) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float2 factors[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) factors[i] = load_shared_pair(taps + i * SLICE * 4 + lane * 8);
    // Of a row of 128 bytes the swizzle exchanges 16-byte chunks, by the lowest 3 bits of the row's number.
    u32 places[STRIP_X];
#pragma unroll
    for (int i = 0; i < STRIP_X; ++i) {
        const int row = warp * STRIP_X + i;
        places[i] = out + row * ROW_BYTES + (lane / 4 ^ row % 8) * 16 + lane % 4 * 4;
    }
    u32 words[STRIP_X + 2];
    const auto load_line = [&](int line) {
#pragma unroll
        for (int i = 0; i < STRIP_X + 2; ++i) {
            words[i] = load_shared_word(pixels + (line * LOADED_X + i) * ROW_BYTES + lane * 4);
        }
    };
    float2 sums[3][STRIP_X];
    load_line(0);
#pragma unroll
    for (int line = 0; line < LINES + 2; ++line) {
        float2 values[STRIP_X + 2];
#pragma unroll
        for (int i = 0; i < STRIP_X + 2; ++i) values[i] = widen(words[i]);
        // Before anything is stored, which the compiler must believe to be the same memory.
        if (line + 1 < LINES + 2) load_line(line + 1);
#pragma unroll
        for (int dy = 2; dy >= 0; --dy) {
            if (line - dy < 0 || line - dy >= LINES) continue;
#pragma unroll
            for (int i = 0; i < STRIP_X; ++i) {
                float2& sum = sums[(line - dy) % 3][i];
#pragma unroll
                for (int dx = 0; dx < 3; ++dx) {
                    const float2 value = values[i + dx], factor = factors[3 * dy + dx];
                    const bool starts = dy == 0 && dx == 0;
                    sum.x = starts ? value.x * factor.x : fmaf(value.x, factor.x, sum.x);
                    sum.y = starts ? value.y * factor.y : fmaf(value.y, factor.y, sum.y);
                }
            }
        }
        if (line < 2) continue;
        const int done = line - 2, part = done / PART_LINES;
#pragma unroll
        for (int i = 0; i < STRIP_X; ++i) {
            const float2 sum = sums[done % 3][i];
            float& square = squares[done * STRIP_X + i];
            square = fmaf(sum.x, sum.x, square);
            square = fmaf(sum.y, sum.y, square);
            const int room = PARTS == 1 ? buffer : part;
            store_shared_word(
                places[i] + room * PART_BYTES + done % PART_LINES * TILE_X * ROW_BYTES, pack(sum.x, sum.y)
            );
        }
        if (done % PART_LINES == PART_LINES - 1) finish(part);
    }
}

// Sums each of COUNT numbers over the warp's lanes, 16 apart at first: lane i gets the sum of number i % COUNT.
template <int COUNT, int APART = 16> __device__ __forceinline__ float sum_over_lanes(float (&numbers)[COUNT]) {
    // A lane goes on with one half of what is left, and gives the other to the lane that goes on with that; both go
    // on with all of it, where there are fewer numbers than lanes.
    constexpr bool HALVES = APART < COUNT;
    const bool upper = HALVES && threadIdx.x & APART;
#pragma unroll
    for (int i = 0; i < (HALVES ? APART : COUNT); ++i) {
        const float high = HALVES ? numbers[i + APART] : numbers[i];
        const float given = upper || !HALVES ? numbers[i] : high;
        numbers[i] = (upper ? high : numbers[i]) + __shfl_xor_sync(~0u, given, APART);
    }
    if constexpr (APART > 1) {
        return sum_over_lanes<COUNT, APART / 2>(numbers);
    } else {
        return numbers[0];
    }
}

#if OUT_WIDE
using Out = float;
__device__ __forceinline__ void store_result(Out* to, float value) { *to = value; }
#else
using Out = unsigned short;
__device__ __forceinline__ void store_result(Out* to, float value) { *to = pack(value, 0.0f); }
#endif

// A lane has pixels lane / 4 and 8 further of a line: its warp's of the part.
__device__ __forceinline__ void write(
    const Job& job, const Tile& tile, int group, int part, const float (&acc)[BLOCK_Q / 2], u32 squares, u32 sums
) {
    const int lane = threadIdx.x % 32, line = group * LINES + part * PART_LINES + threadIdx.x / 32 % 4;
    const int y = tile.y + line, x = tile.x + lane / 4;
    float scale[2], shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float own = acc[ONES / 8 * 4 + half * 2 + ONES % 2];
        const float mean = __shfl_sync(~0u, own, lane / 4 * 4 + ONES % 8 / 2) * job.weight;
        const float square = load_shared_number(squares + (line * TILE_X + half * 8 + lane / 4) * 4);
        scale[half] = rsqrtf(fmaxf(square * job.weight - mean * mean, 0.0f) + job.eps);
        shift[half] = -mean * scale[half];
    }
    const bool inside[2] = {y < tile.size && x < tile.size, y < tile.size && x + 8 < tile.size};
    const long long area = tile.size * tile.size;
    Out* out = static_cast<Out*>(job.out) + y * tile.size + x +
               (static_cast<long long>(tile.crop) * job.queries + tile.first + lane % 4 * 2) * area;
#pragma unroll
    for (int i = 0; i < BLOCK_Q / 8; ++i) {
        const int query = i * 8 + lane % 4 * 2;
        const float2 of_folded = load_shared_pair(sums + query * 4);
        const float2 of_bias = load_shared_pair(sums + SUM_BYTES + query * 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* const own = acc + i * 4 + half * 2;
            const float first = fmaf(own[0], scale[half], fmaf(shift[half], of_folded.x, of_bias.x));
            const float second = fmaf(own[1], scale[half], fmaf(shift[half], of_folded.y, of_bias.y));
            if (inside[half] && query < tile.queries) store_result(out + half * 8, first);
            if (inside[half] && query + 1 < tile.queries) store_result(out + area + half * 8, second);
        }
        out += 8 * area;
    }
}

__device__ __forceinline__ void consume(
    const Job& job, const Tile& tile, u32 convolved, u32 ring, u32 squares_at, u32 sums_at, u32 full, u32 empty
) {
    // The shuffle tells the compiler that it is the same in a warp.
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const u32 own = convolved + group * GROUP_BYTES;
    float acc[PARTS][BLOCK_Q / 2] = {};
    float squares[LINES * STRIP_X] = {};
    wait_for_inputs();
    // For the end. Both warpgroups store the same, so that neither waits for the other.
#pragma unroll 1
    for (int query = threadIdx.x % 128; query < tile.queries; query += 128) {
        const float* const of_query = job.sums + tile.crop * job.queries + tile.first + query;
        store_shared(sums_at + query * 4, of_query[0]);
        store_shared(sums_at + SUM_BYTES + query * 4, of_query[job.crops * job.queries]);
    }
    Cursor at;
    u32 used = 0; // the barrier of the stage that the last products read
    for (int step = 0; step < job.channels / SLICE; ++step, at.advance()) {
        const u32 queries = ring + at.stage * STAGE_BYTES, pixels = queries + QUERY_BYTES;
        const int buffer = step % 2;
        barrier_wait(full + 8 * at.stage, at.parity);
        const u32 first = pixels + (group * LINES * LOADED_X + warp * STRIP_X) * ROW_BYTES;
        convolve(first, pixels + PIXEL_BYTES, own, buffer, squares, [&](int part) {
            fence_async();
            // When all warps have come here, the products before have ended, and what they read may be overwritten.
            multiply_wait<0>();
            warpgroup_sync(group);
            if (part == 0 && step > 0 && lane == 0) barrier_arrive(used);
            used = empty + 8 * at.stage;
            const u64 a = descriptor(own + (PARTS == 1 ? buffer : part) * PART_BYTES), b = descriptor(queries);
            multiply_fence();
#pragma unroll
            for (int i = 0; i < SLICE / 16; ++i) multiply(acc[part], a + 2 * i, b + 2 * i); // 32 bytes further on
            multiply_commit();
        });
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) multiply_wait(acc[part]);
    if (lane == 0) barrier_arrive(used);
    const int pixel = lane % (LINES * STRIP_X), line = group * LINES + pixel / STRIP_X;
    const float square = sum_over_lanes(squares);
    store_shared(squares_at + (line * TILE_X + warp * STRIP_X + pixel % STRIP_X) * 4, square);
    warpgroup_sync(group);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) write(job, tile, group, part, acc[part], squares_at, sums_at);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + COPIERS, 1) depthwise_masks(
    const __grid_constant__ TensorMap queries, const __grid_constant__ TensorMap last_queries,
    const __grid_constant__ Job job
) {
    extern __shared__ unsigned char memory[];
    let_next_start();
    // Swizzling goes by address: what tensor cores read starts at multiples of 1024 bytes.
    const u32 convolved = (shared_address(memory) + 1023) & ~1023u;
    const u32 ring = convolved + GROUPS * GROUP_BYTES, squares = ring + STAGES * STAGE_BYTES;
    const u32 sums = squares + SQUARE_BYTES, table = sums + 2 * SUM_BYTES;
    const u32 full = table + TABLE_BYTES, empty = full + 8 * STAGES;
    const Tile tile(job);
    if (threadIdx.x == CONSUMERS) {
        prefetch_map(queries);
        prefetch_map(last_queries);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, COPIERS + 1);
            barrier_init(empty + 8 * stage, CONSUMERS / 32);
        }
        barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        fewer_registers<PRODUCER_REGISTERS>();
        produce(queries, last_queries, job, tile, ring, table, full, empty);
    } else {
        more_registers<CONSUMER_REGISTERS>();
        consume(job, tile, convolved, ring, squares, sums, full, empty);
    }
}
