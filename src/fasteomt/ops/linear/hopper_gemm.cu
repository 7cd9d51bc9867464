// One linear layer for Hopper (sm_90a): x (M, K) W (N, K)^T + bias, and what follows it.
//
// Blocks stay for the whole launch, one a multiprocessor. One thread of the last warps copies tiles of x and W into a
// ring of STAGES, and after them the tile of the residual stream that the result is added to. Two warpgroups take
// turns: each multiplies every other tile as a whole, so that one multiplies while the other finishes its results.
// The ring runs on from one tile into the next, so that the next one is being fetched meanwhile. The blocks of a
// cluster work on different rows and the same columns, and each fetches its share of W for all, which spares L2.
// Weights are fetched before the kernel that makes x has ended.
//
// Defined by who compiles this:
//   BLOCK_N           columns of a tile, a multiple of 32 up to 256
//   HALVES            of 64 rows that a tile has, 1 or 2
//   CLUSTER           blocks of a cluster, 1 or 2
//   STAGES            of the ring
//   TYPE, OUT_TYPE    bf16 or f16, as PTX writes it: of x and W, and of what is rounded
//   GELU, ROPE, RESIDUAL  the epilogue: one of them, or none. HEAD_DIM: of ROPE, divides BLOCK_N
//   NORM              with RESIDUAL: gives the stream's LayerNorm, too
//   MAX_ROW_TILES     length of the table of tiles
//   BLOCK_...         operands of a product, as ops/hopper.py writes them, whose sums are `acc`

#include "hopper_gemm_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int BLOCK_K = 64, HALF_M = 64;
constexpr int SHARE_N = BLOCK_N / CLUSTER, SHARE_BYTES = SHARE_N * BLOCK_K * 2;
constexpr int HALF_BYTES = HALF_M * BLOCK_K * 2;
constexpr int STAGE_BYTES = HALVES * HALF_BYTES + CLUSTER * SHARE_BYTES;
constexpr int CONSUMERS = 256, COPIERS = 128, READERS = CONSUMERS / 2 / 32;
constexpr int UNIT_N = 32; // columns that are written at a time
// The stream comes in boxes of 64 rows and 32 columns, those of the first 64 rows first, as many to a stage as fit.
constexpr int UNITS = BLOCK_N / UNIT_N, BOX_BYTES = HALF_M * UNIT_N * 4, BOXES = STAGE_BYTES / BOX_BYTES;
constexpr int STREAM_STEPS = RESIDUAL ? (HALVES * UNITS + BOXES - 1) / BOXES : 0;
// For them, the last product's warpgroup may need all stages but one.
static_assert(STREAM_STEPS < STAGES);

struct RowTile {
    int first, rows;
};

struct Job {
    void* out;           // (M, N), rows out_stride elements apart
    const float* bias;   // (N,) or null
    const float* scale;  // (N,) or null for 1, of RESIDUAL
    const float* sin;    // (patches, HEAD_DIM / 2), of ROPE
    const float* cos;
    void* normed;        // of NORM: (M, N), contiguous
    const float* gain;   // (N,), its weight and bias
    const float* offset;
    Part* parts;         // of rows of the stream, (M, column_tiles), see hopper_norm.cuh
    long long out_stride;
    int rotated, patches, extras; // of ROPE: columns to turn, and tokens of a crop
    int columns, column_tiles;    // columns: N, a multiple of UNIT_N
    int steps;                    // of BLOCK_K
    int together, alone, spread;  // see Schedule
    float eps;
    RowTile row_tiles[MAX_ROW_TILES];
};

// A tile's rows and first column; `shared`: all blocks of the cluster have this column.
struct Tile {
    RowTile at;
    int column;
    bool shared;
};

#include "hopper_epilogue.cuh"

// The tiles of this block. First the cluster's blocks take row tiles beside one another and share columns, for
// `together` groups of row tiles in turn, so that clusters that run at a time share columns too. Then come the
// `alone` row tiles left, the small ones among them: the blocks share the row tile and take columns beside one
// another. The last `spread` clusters do these, since they have fewer of the others.
//
// With NORM, who has columns of a row waits for who has the others. So all row tiles are `together`, clusters are single
// blocks, and the columns of a row tile come right after one another instead. Blocks do their tiles in this order, and no
// warpgroup has two of one row tile: among those who wait, the first ones get what they need.
struct Schedule {
    const Job& job;
    int rank, next_together, next_alone;

    __device__ __forceinline__ Schedule(const Job& of) : job(of) {
        rank = blockIdx.x % CLUSTER;
        next_together = blockIdx.x / CLUSTER;
        next_alone = gridDim.x / CLUSTER - 1 - next_together;
        if (next_alone >= job.spread) next_alone = alone_items();
    }
    __device__ __forceinline__ int alone_items() const {
        return job.alone * ((job.column_tiles + CLUSTER - 1) / CLUSTER);
    }

    __device__ __forceinline__ bool has_more() const {
        return next_together < job.together * job.column_tiles || next_alone < alone_items();
    }

    // Blocks of a cluster have equally many; one that has nothing to do gets a tile without rows.
    __device__ __forceinline__ bool next(Tile& tile) {
        tile.shared = next_together < job.together * job.column_tiles;
        if (tile.shared) {
            const int row = NORM ? next_together / job.column_tiles : next_together % job.together;
            const int column = NORM ? next_together % job.column_tiles : next_together / job.together;
            tile.at = job.row_tiles[row * CLUSTER + rank];
            tile.column = column * BLOCK_N;
            next_together += gridDim.x / CLUSTER;
        } else if (next_alone < alone_items()) {
            const int column_tile = next_alone / job.alone * CLUSTER + rank;
            tile.at = job.row_tiles[job.together * CLUSTER + next_alone % job.alone];
            if (column_tile >= job.column_tiles) tile.at.rows = 0;
            tile.column = column_tile * BLOCK_N;
            next_alone += job.spread;
        } else {
            return false;
        }
        return true;
    }
};

__device__ __forceinline__ void produce(
    const TensorMap& x, const TensorMap& weight, const TensorMap& stream, const Job& job, u32 ring, u32 full, u32 empty
) {
    Schedule schedule(job);
    Cursor at;
    Tile tile;
    int ahead = job.steps < STAGES ? job.steps : STAGES; // steps of the first tile that fit into the ring
    while (schedule.next(tile)) {
        const int halves = (tile.at.rows + HALF_M - 1) / HALF_M;
        const u32 bytes = halves > 0 ? halves * HALF_BYTES + CLUSTER * SHARE_BYTES : 0;
        const auto fetch_weight = [&](int step, const Cursor& to) {
            const u32 place = ring + to.stage * STAGE_BYTES + HALVES * HALF_BYTES, barrier = full + 8 * to.stage;
            const int k = step * BLOCK_K;
            barrier_wait(empty + 8 * to.stage, to.parity ^ 1);
            barrier_arrive_expecting(barrier, bytes);
            if (CLUSTER > 1 && tile.shared) {
                const int share = schedule.rank;
                copy_box_to_all(place + share * SHARE_BYTES, weight, k, tile.column + share * SHARE_N, barrier);
            } else if (halves > 0) {
                for (int share = 0; share < CLUSTER; ++share) {
                    copy_box(place + share * SHARE_BYTES, weight, k, tile.column + share * SHARE_N, barrier);
                }
            }
        };
        const auto fetch_x = [&](int step, const Cursor& to) {
            const u32 place = ring + to.stage * STAGE_BYTES, barrier = full + 8 * to.stage;
            const int k = step * BLOCK_K;
            if (halves > 0) copy_box(place, x, k, tile.at.first, barrier);
            if (halves > 1) copy_box(place + HALF_BYTES, x, k, tile.at.first + HALF_M, barrier);
        };
        Cursor early = at;
        for (int step = 0; step < ahead; ++step) {
            fetch_weight(step, early);
            early.advance();
        }
        wait_for_inputs();
        for (int step = 0; step < job.steps; ++step) {
            if (step >= ahead) fetch_weight(step, at);
            fetch_x(step, at);
            at.advance();
        }
        for (int step = 0; step < STREAM_STEPS; ++step) {
            const u32 place = ring + at.stage * STAGE_BYTES, barrier = full + 8 * at.stage;
            const int first = step * BOXES, end = min(first + BOXES, halves * UNITS), boxes = end - first;
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            barrier_arrive_expecting(barrier, boxes > 0 ? boxes * BOX_BYTES : 0);
            for (int box = first; box < end; ++box) {
                // As 16-bit elements, of which a box has 64 columns.
                const int column = 2 * (tile.column + box % UNITS * UNIT_N), row = tile.at.first + box / UNITS * HALF_M;
                copy_box(place + (box - first) * BOX_BYTES, stream, column, row, barrier);
            }
            at.advance();
        }
        ahead = 0;
    }
}

// Adds the products of a whole K to the sums of COUNT halves of a tile. If the other warpgroup `follows`, tells it when
// the last one has begun, and when the stream is there. Barriers know even rounds from odd ones only: nobody may look
// at a stage before what was to come a round earlier is there.
template <int COUNT>
__device__ __forceinline__ void multiply_all(
    float (&acc)[HALVES][BLOCK_N / 2], int group, int steps, bool follows, Cursor& at, u32 ring, u32 full, u32 empty
) {
    const int lane = threadIdx.x % 32;
    u32 finished = empty;
    for (int step = 0; step < steps; ++step) {
        const u32 stage = ring + at.stage * STAGE_BYTES;
        const u64 a = descriptor(stage), b = descriptor(stage + HALVES * HALF_BYTES);
        barrier_wait(full + 8 * at.stage, at.parity);
        multiply_fence();
#pragma unroll
        for (int i = 0; i < BLOCK_K / 16; ++i) {
#pragma unroll
            for (int half = 0; half < COUNT; ++half) {
                // 16 elements, 32 bytes, further along the rows.
                multiply(acc[half], a + half * (HALF_BYTES >> 4) + 2 * i, b + 2 * i);
            }
        }
        multiply_commit();
        if (STREAM_STEPS == 0 && follows && step == steps - 1) tell_other(group);
        // A stage is given back when the products of the next one have begun.
        multiply_wait<1>();
        if (step > 0 && lane < CLUSTER) barrier_arrive(finished, lane);
        finished = empty + 8 * at.stage;
        at.advance();
    }
    if (STREAM_STEPS > 0 && follows) {
        Cursor stream = at;
        for (int step = 0; step < STREAM_STEPS; ++step, stream.advance()) {
            barrier_wait(full + 8 * stream.stage, stream.parity);
        }
        tell_other(group);
    }
#pragma unroll
    for (int half = 0; half < COUNT; ++half) multiply_wait(acc[half]);
    if (lane < CLUSTER) barrier_arrive(finished, lane);
}

__device__ __forceinline__ void consume(const Job& job, u32 ring, u32 full, u32 empty, u32 staging) {
    // The shuffle tells the compiler that it is the same in a warp.
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
    const u32 own_staging = staging + threadIdx.x / 32 * 16 * UNIT_N * 2;
    Schedule schedule(job);
    Cursor at;
    Tile tile;
    for (int number = 0; schedule.next(tile); ++number) {
        if (number % 2 != group) {
            at.advance(job.steps + STREAM_STEPS);
            continue;
        }
        const bool leads = schedule.has_more();
        if (tile.at.rows == 0) {
            if (number > 0) wait_for_other(group);
            for (int step = 0; step < job.steps + STREAM_STEPS; ++step, at.advance()) {
                barrier_wait(full + 8 * at.stage, at.parity);
                if (leads && step == job.steps + STREAM_STEPS - 1) tell_other(group);
                __syncwarp();
                if (lane < CLUSTER) barrier_arrive(empty + 8 * at.stage, lane);
            }
            continue;
        }
        float acc[HALVES][BLOCK_N / 2];
#pragma unroll
        for (int half = 0; half < HALVES; ++half) start_sums(job, tile, acc[half]);
        wait_for_inputs();
        Before before;
        load_before(job, tile, before, own_staging);
        if (number > 0) wait_for_other(group);
        const bool whole = HALVES > 1 && tile.at.rows > HALF_M;
        if (whole) {
            multiply_all<HALVES>(acc, group, job.steps, leads, at, ring, full, empty);
        } else {
            multiply_all<1>(acc, group, job.steps, leads, at, ring, full, empty);
        }
        write(job, tile, whole ? 2 : 1, acc, before, at, ring, full, empty, own_staging);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(CONSUMERS + COPIERS, 1) linear(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight,
    const __grid_constant__ TensorMap stream, const __grid_constant__ Job job
) {
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    // Swizzling goes by address: the ring starts at a multiple of 1024 bytes.
    const u32 ring = (shared_address(memory) + 1023) & ~1023u;
    const u32 staging = ring + STAGES * STAGE_BYTES;
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;

    if (threadIdx.x == CONSUMERS) {
        let_next_start();
        prefetch_map(x);
        prefetch_map(weight);
        if (RESIDUAL) prefetch_map(stream);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, CLUSTER * READERS);
        }
        barriers_ready();
    }
    meet_cluster();

    // 128 x 40 + 256 x 232 registers are those that 384 threads start with, 168 each.
    if (threadIdx.x >= CONSUMERS) {
        fewer_registers<40>();
        if (threadIdx.x == CONSUMERS) produce(x, weight, stream, job, ring, full, empty);
    } else {
        more_registers<232>();
        consume(job, ring, full, empty, staging);
    }
    // The other block may still arrive at barriers here.
    if (CLUSTER > 1) meet_cluster();
}
