// One linear layer for Hopper (sm_90a): x (M, K) W (N, K)^T + bias, and what follows it.
//
// Blocks stay for the whole launch, one a multiprocessor. One thread of the last warps copies tiles of x and W into a
// ring of STAGES, and after them the tile of the residual stream that the result is added to. Two warpgroups take
// turns: each multiplies every other tile as a whole, so that one multiplies while the other finishes its results.
// Or, with SPLIT, each does half of every tile: so larger ones fit into registers, which need less of shared memory's
// bandwidth, and where a block has but one tile, both finish it. The ring runs on from one tile into the next, so that
// the next one is being fetched meanwhile. The blocks of a cluster work on different rows and the same columns, and
// each fetches its share of W for all, which spares L2. Weights, and all else that no kernel before makes, are fetched
// before the kernel that makes x has ended.
//
// Defined by who compiles this:
//   BLOCK_N           columns of a tile, a multiple of 32 up to 256
//   HALVES            of 64 rows that a tile has, 1 or 2
//   SPLIT             1 if a warpgroup has half of a tile: of its rows if HALVES is 2, else of its columns. Or 0
//   OWN_N             columns that a warpgroup has of a tile, a multiple of 32
//   CLUSTER           blocks of a cluster, 1 or 2
//   STAGES            of the ring
//   TYPE, OUT_TYPE    bf16 or f16, as PTX writes it: of x and W, and of what is rounded
//   GELU, ROPE, RESIDUAL  the epilogue: one of them, or none. HEAD_DIM: of ROPE, divides OWN_N
//   NORM              with RESIDUAL: gives the stream's LayerNorm, too
//   OWN_...           operands of a product, as ops/hopper.py writes them, whose sums are `acc`

#include "hopper_gemm_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int BLOCK_K = 64, HALF_M = 64, BLOCK_M = HALVES * HALF_M;
constexpr int SHARE_N = BLOCK_N / CLUSTER, SHARE_BYTES = SHARE_N * BLOCK_K * 2;
constexpr int HALF_BYTES = HALF_M * BLOCK_K * 2;
constexpr int STAGE_BYTES = HALVES * HALF_BYTES + CLUSTER * SHARE_BYTES;
constexpr int CONSUMERS = 256, COPIERS = 128;
// Whether a warpgroup has half of a tile's rows or of its columns.
constexpr bool HAS_ROWS = SPLIT && HALVES == 2, HAS_COLUMNS = SPLIT && HALVES == 1;
static_assert(OWN_N == BLOCK_N / (1 + HAS_COLUMNS), "warpgroups have a tile between them");
// Warpgroups that have a part of a tile, the halves of 64 rows of such a part, and warps that read a stage.
constexpr int PARTS = 1 + SPLIT, OWN_HALVES = HALVES / (1 + HAS_ROWS), READERS = 4 * PARTS;
constexpr int UNIT_N = 32; // columns that are written at a time
// The stream comes in boxes of 64 rows and 32 columns, those of the first 64 rows first, as many to a stage as fit,
// those of both parts in turn.
constexpr int UNITS = OWN_N / UNIT_N, BOX_BYTES = HALF_M * UNIT_N * 4, BOXES = STAGE_BYTES / (PARTS * BOX_BYTES);
constexpr int STREAM_STEPS = RESIDUAL ? (OWN_HALVES * UNITS + BOXES - 1) / BOXES : 0;
// Who takes turns waits for all of them before it gives back the last products' stage.
static_assert(SPLIT || STREAM_STEPS < STAGES);

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
    Part* parts;         // of rows of the stream, (M, N / OWN_N rounded up), see hopper_norm.cuh
    long long out_stride;
    int rotated, patches, extras; // of ROPE: columns to turn, and tokens of a crop
    int rows;                     // M
    int columns, column_tiles;    // columns: N, a multiple of UNIT_N
    int steps;                    // of BLOCK_K
    int together, alone, spread;  // see Schedule
    float eps;

    __device__ __forceinline__ RowTile row_tile(int i) const {
        const int first = i * BLOCK_M;
        return {first, min(BLOCK_M, rows - first)};
    }
};

// A tile's rows and first column; `shared`: all blocks of the cluster have this column.
struct Tile {
    RowTile at;
    int column;
    bool shared;

    // What a warpgroup has of it.
    __device__ __forceinline__ Tile part(const Job& job, int group) const {
        Tile own = *this;
        if (HAS_ROWS) {
            own.at.first += group * HALF_M;
            own.at.rows = max(0, min(HALF_M, at.rows - group * HALF_M));
        } else if (HAS_COLUMNS) {
            own.column += group * OWN_N;
            if (own.column >= job.columns) own.at.rows = 0;
        }
        return own;
    }
};

#include "hopper_epilogue.cuh"

// The tiles of this block. First the cluster's blocks take row tiles beside one another and share columns, for
// `together` groups of row tiles in turn, so that clusters that run at a time share columns too. Then come the
// `alone` row tiles left, the small ones among them: the blocks share the row tile and take columns beside one
// another. The last `spread` clusters do these, since they have fewer of the others.
//
// With NORM, who has columns of a row waits for who has the others. So clusters are single blocks, and the columns of a
// row tile come right after one another instead, to blocks beside one another. All do their tiles in the order of rows,
// and no block has two of one row tile: among those who wait, the first ones get what they need.
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
            tile.at = job.row_tile(row * CLUSTER + rank);
            tile.column = column * BLOCK_N;
            next_together += gridDim.x / CLUSTER;
        } else if (next_alone < alone_items()) {
            const int row = NORM ? next_alone / job.column_tiles : next_alone % job.alone;
            const int column_tile = NORM ? next_alone % job.column_tiles : next_alone / job.alone * CLUSTER + rank;
            tile.at = job.row_tile(job.together * CLUSTER + row);
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
            const u32 barrier = full + 8 * at.stage;
            const int first = step * BOXES;
            const auto boxes_of = [&](const Tile& part) {
                return max(0, min(BOXES, (part.at.rows + HALF_M - 1) / HALF_M * UNITS - first));
            };
            int boxes = 0;
            for (int group = 0; group < PARTS; ++group) boxes += boxes_of(tile.part(job, group));
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            barrier_arrive_expecting(barrier, boxes * BOX_BYTES);
            for (int group = 0; group < PARTS; ++group) {
                const Tile part = tile.part(job, group);
                u32 place = ring + at.stage * STAGE_BYTES + group * BOX_BYTES;
                for (int box = first; box < first + boxes_of(part); ++box, place += PARTS * BOX_BYTES) {
                    // As 16-bit elements, of which a box has 64 columns.
                    const int column = 2 * (part.column + box % UNITS * UNIT_N);
                    copy_box(place, stream, column, part.at.first + box / UNITS * HALF_M, barrier);
                }
            }
            at.advance();
        }
        ahead = 0;
    }
}

// Adds the products of a whole K to the sums of COUNT halves of a part. If the other warpgroup `follows`, tells it when
// the last one has begun, and when the stream is there. Barriers know even rounds from odd ones only: nobody may look
// at a stage before what was to come a round earlier is there.
template <int COUNT>
__device__ __forceinline__ void multiply_all(
    float (&acc)[OWN_HALVES][OWN_N / 2], int group, int steps, bool follows, Cursor& at, u32 ring, u32 full, u32 empty
) {
    const int lane = threadIdx.x % 32;
    const u32 own_a = HAS_ROWS ? group * HALF_BYTES : 0;
    const u32 own_b = HALVES * HALF_BYTES + (HAS_COLUMNS ? group * OWN_N * BLOCK_K * 2 : 0);
    u32 finished = empty;
    for (int step = 0; step < steps; ++step) {
        const u32 stage = ring + at.stage * STAGE_BYTES;
        const u64 a = descriptor(stage + own_a), b = descriptor(stage + own_b);
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
        if (!SPLIT && number % 2 != group) {
            at.advance(job.steps + STREAM_STEPS);
            continue;
        }
        const bool follows = !SPLIT && number > 0, leads = !SPLIT && schedule.has_more();
        if (SPLIT) tile = tile.part(job, group);
        if (tile.at.rows == 0) {
            if (follows) wait_for_other(group);
            for (int step = 0; step < job.steps + STREAM_STEPS; ++step, at.advance()) {
                barrier_wait(full + 8 * at.stage, at.parity);
                if (leads && step == job.steps + STREAM_STEPS - 1) tell_other(group);
                __syncwarp();
                if (lane < CLUSTER) barrier_arrive(empty + 8 * at.stage, lane);
            }
            continue;
        }
        float acc[OWN_HALVES][OWN_N / 2];
#pragma unroll
        for (int half = 0; half < OWN_HALVES; ++half) start_sums(job, tile, acc[half]);
        Before before;
        load_before(job, tile, before, own_staging);
        wait_for_inputs();
#if NORM
        before.norm.load(job, Place(tile, job, 0));
#endif
        if (follows) wait_for_other(group);
        const bool whole = OWN_HALVES > 1 && tile.at.rows > HALF_M;
        if (whole) {
            multiply_all<OWN_HALVES>(acc, group, job.steps, leads, at, ring, full, empty);
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
