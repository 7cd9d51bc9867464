// One linear layer for Hopper (sm_90a): x (M, K) W (N, K)^T + bias, and what follows it.
//
// Blocks stay for the whole launch, one a multiprocessor; or two share one, and each does one tile. One thread of
// the last warps copies tiles of x and W into a ring of STAGES; the first two warpgroups multiply: each 64 of a
// tile's 128 rows, or, if they ALTERNATE, every other tile as a whole, so that one multiplies while the other
// finishes its results. Tiles of 64 rows that they share are SPLIT: each does every other step, and then they add
// their sums. The ring runs on from one tile into the next, so that the next one is being fetched while results are
// written. The blocks of a cluster work on different rows and the same columns, and each fetches its share of W for
// all, which spares L2. Weights are fetched before the kernel that makes x has ended.
//
// Defined by who compiles this:
//   BLOCK_N           columns of a tile, a multiple of 32 up to 256
//   CLUSTER           blocks of a cluster, 1 or 2
//   STAGES, LAG       stages of the ring; by how many of them the second warpgroup runs behind the first
//   HALVES            of 64 rows that a tile has: 2, or 1 with LAG 0
//   ALTERNATE         0 or 1, with LAG 0. Tiles that are SPLIT have columns in multiples of 64
//   RESIDENT          blocks of a multiprocessor, 1 or 2
//   TYPE              bf16 or f16, as PTX writes it
//   GELU, ROPE, RESIDUAL  the epilogue: one of them, or none; HEAD_DIM: of ROPE
//   FOLDED, HANDS_ON  0 or 1: a norm before the product; after RESIDUAL, what such a product takes next
//   MAX_ROW_TILES     length of the table of tiles
//   BLOCK_...         operands of a product, as ops/hopper.py writes them, whose sums are `acc`

#define SPLIT (HALVES == 1 && !ALTERNATE)

#include "hopper_gemm_ptx.cuh"
#include "hopper_tiles.cuh"

constexpr int BLOCK_K = 64, HALF_M = 64;
constexpr int SHARE_N = BLOCK_N / CLUSTER, SHARE_BYTES = SHARE_N * BLOCK_K * 2;
constexpr int HALF_BYTES = HALF_M * BLOCK_K * 2;
constexpr int STAGE_BYTES = HALVES * HALF_BYTES + CLUSTER * SHARE_BYTES;
constexpr int CONSUMERS = 256, COPIERS = RESIDENT == 1 ? 128 : 32, UNIT_N = 32;
// A warpgroup gives a stage back when it has begun with its next one. Barriers know even rounds from odd ones only:
// if SPLIT, each must have its own stages, or it would miss rounds.
static_assert(STAGES >= 2 && (!SPLIT || (STAGES >= 4 && STAGES % 2 == 0)));
// Halves of a tile that a warpgroup multiplies, and warps of a block that give a stage back.
constexpr int PARTS = ALTERNATE ? HALVES : 1, READERS = CONSUMERS / 32 / (ALTERNATE || SPLIT ? 2 : 1);
// Columns of which a warpgroup finishes the sums, and steps from one of its own to the next.
constexpr int OWN_N = BLOCK_N / (SPLIT ? 2 : 1), STRIDE = SPLIT ? 2 : 1;
// Sums that a thread passes to the other warpgroup at a time, and where.
constexpr int PASSED = 8, EXCHANGE_BYTES = SPLIT ? 2 * CONSUMERS * PASSED * 4 : 0;

struct RowTile {
    int first, rows;
};

struct Job {
    void* out;          // (M, N), rows out_stride elements apart
    const float* bias;  // (N,) or null
    const float* scale; // (N,) or null for 1, of RESIDUAL
    const float* sin;   // (patches, HEAD_DIM / 2), of ROPE
    const float* cos;
    void* copy;         // of HANDS_ON: (M, N), contiguous
    float2* parts;      // (M, part_count), of HANDS_ON's rows or of FOLDED's, see hopper_moments.cuh
    const float* sums;  // (N,), of FOLDED
    long long out_stride;
    int rotated, patches, extras; // of ROPE: columns to turn, and tokens of a crop
    int columns, column_tiles;    // columns: N, a multiple of UNIT_N
    int steps;                    // of BLOCK_K
    int together, alone, spread;  // see Schedule
    int part_count;
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
            tile.at = job.row_tiles[next_together % job.together * CLUSTER + rank];
            tile.column = next_together / job.together * BLOCK_N;
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
    const TensorMap& x, const TensorMap& weight, const Job& job, u32 ring, u32 full, u32 empty
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
        ahead = 0;
    }
}

// Adds the products of a whole K, or of a warpgroup's steps of it, to the sums of COUNT halves of a tile, from row
// `first` of the tile on. Tells the other warpgroup when it has begun with step `telling`, if there is one.
template <int COUNT>
__device__ __forceinline__ void multiply_all(
    float (&acc)[PARTS][BLOCK_N / 2], int group, int first, int steps, int telling, Cursor& at, u32 ring, u32 full,
    u32 empty
) {
    const int lane = threadIdx.x % 32;
    const int start = SPLIT ? group : 0;
    u32 finished = empty;
    for (int step = start; step < steps; step += STRIDE) {
        const u32 stage = ring + at.stage * STAGE_BYTES;
        const u64 a = descriptor(stage + first / HALF_M * HALF_BYTES), b = descriptor(stage + HALVES * HALF_BYTES);
        barrier_wait(full + 8 * at.stage, at.parity);
        multiply_fence();
#pragma unroll
        for (int i = 0; i < BLOCK_K / 16; ++i) {
#pragma unroll
            for (int part = 0; part < COUNT; ++part) {
                // 16 elements, 32 bytes, further along the rows.
                multiply(acc[part], a + part * (HALF_BYTES >> 4) + 2 * i, b + 2 * i);
            }
        }
        multiply_commit();
        if (step == telling) tell_other(group);
        multiply_wait<1>();
        if (step > start && lane < CLUSTER) barrier_arrive(finished, lane);
        finished = empty + 8 * at.stage;
#pragma unroll
        for (int i = 0; i < STRIDE; ++i) at.advance();
    }
#pragma unroll
    for (int part = 0; part < COUNT; ++part) multiply_wait(acc[part]);
    if (lane < CLUSTER) barrier_arrive(finished, lane);
}

// Both warpgroups have sums of all columns: each leaves one half of them to the other and adds what it gets of its
// own, PASSED at a time, by way of `exchange`, one half of which is written while the other may still be read. These
// times are even in number, so that the same holds from one tile to the next.
__device__ __forceinline__ void exchange_sums(
    int group, const float (&acc)[BLOCK_N / 2], float (&own)[OWN_N / 2], u32 exchange
) {
#if SPLIT
    static_assert(OWN_N / 2 % (2 * PASSED) == 0);
    const u32 place = exchange + threadIdx.x % 128 * 16;
    constexpr int HALF_BYTES_OF_ROOM = EXCHANGE_BYTES / 4;
    const auto sum_of = [&](bool mine, int i) { return (group == 0) == mine ? acc[i] : acc[OWN_N / 2 + i]; };
#pragma unroll
    for (int from = 0; from < OWN_N / 2; from += PASSED) {
        const u32 room = place + from / PASSED % 2 * (EXCHANGE_BYTES / 2);
        const u32 left = room + group * HALF_BYTES_OF_ROOM, found = room + (1 - group) * HALF_BYTES_OF_ROOM;
#pragma unroll
        for (int i = 0; i < PASSED; i += 4) {
            const int at = from + i;
            const float4 others{sum_of(false, at), sum_of(false, at + 1), sum_of(false, at + 2), sum_of(false, at + 3)};
            store_shared(left + i / 4 * 128 * 16, others);
        }
        meet_other();
#pragma unroll
        for (int i = 0; i < PASSED; i += 4) {
            const int at = from + i;
            const float4 got = load_shared_floats(found + i / 4 * 128 * 16);
            own[at] = got.x + sum_of(true, at);
            own[at + 1] = got.y + sum_of(true, at + 1);
            own[at + 2] = got.z + sum_of(true, at + 2);
            own[at + 3] = got.w + sum_of(true, at + 3);
        }
    }
#endif
}

__device__ __forceinline__ void consume(
    const Job& job, u32 ring, u32 full, u32 empty, u32 staging, u32 exchange
) {
    // The shuffle tells the compiler that it is the same in a warp.
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
    // A ring's length behind, the second warpgroup would keep the first one from every stage.
    const int lag = job.steps >= 2 * STAGES ? LAG : 0;
    const int first = ALTERNATE || SPLIT ? 0 : group * HALF_M;
    const u32 own_staging = staging + threadIdx.x / 32 * 16 * UNIT_N * 2;
    Schedule schedule(job);
    Cursor at;
    Tile tile;
    for (int number = 0; schedule.next(tile); ++number) {
        if (ALTERNATE && number % 2 != group) {
            at.advance(job.steps);
            continue;
        }
        // Barriers of the ring know even rounds from odd ones only: who isn't next must not look at them.
        const bool follows = ALTERNATE && number > 0, leads = ALTERNATE && schedule.has_more();
        if (tile.at.rows <= first) {
            if (follows) wait_for_other(group);
            for (int step = 0; step < job.steps; ++step, at.advance()) {
                if (SPLIT && step % 2 != group) continue;
                barrier_wait(full + 8 * at.stage, at.parity);
                __syncwarp();
                if (lane < CLUSTER) barrier_arrive(empty + 8 * at.stage, lane);
            }
            if (leads) tell_other(group);
            if (SPLIT) meet_other(); // the next tile's steps may be at stages that were the other's
            continue;
        }
        const bool lags = lag && tile.at.rows > HALF_M;
        float acc[PARTS][BLOCK_N / 2];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) start_sums(job, tile, SPLIT && group == 1, acc[part]);
        const Place place(tile, job, first, SPLIT ? group * OWN_N : 0);
        wait_for_inputs();
        Before before[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            load_before(job, Place(tile, job, first + part * HALF_M, SPLIT ? group * OWN_N : 0), before[part]);
        }
        if (follows || (lags && group == 1)) wait_for_other(group);
        const int telling = leads ? job.steps - 1 : lags && group == 0 ? lag - 1 : -1;
        const bool whole = PARTS > 1 && tile.at.rows > HALF_M;
        Cursor own = at;
        if (SPLIT && group == 1) own.advance();
        if (whole) {
            multiply_all<PARTS>(acc, group, first, job.steps, telling, own, ring, full, empty);
        } else {
            multiply_all<1>(acc, group, first, job.steps, telling, own, ring, full, empty);
        }
        at.advance(job.steps);
#if SPLIT
        float sums[OWN_N / 2];
        exchange_sums(group, acc[0], sums, exchange);
        write(job, place, sums, before[0], own_staging);
#else
        write(job, place, acc[0], before[0], own_staging);
        if (whole) write(job, Place(tile, job, HALF_M, 0), acc[PARTS - 1], before[PARTS - 1], own_staging);
#endif
        if (RESIDENT > 1) return; // one tile each: needs no registers for what comes after it
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(CONSUMERS + COPIERS, RESIDENT) linear(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const __grid_constant__ Job job
) {
    extern __shared__ unsigned char memory[];
    __shared__ alignas(8) u64 barriers[2 * STAGES];
    // Swizzling goes by address: the ring starts at a multiple of 1024 bytes.
    const u32 ring = (shared_address(memory) + 1023) & ~1023u;
    const u32 exchange = ring + STAGES * STAGE_BYTES, staging = exchange + EXCHANGE_BYTES;
    const u32 full = shared_address(barriers), empty = full + 8 * STAGES;

    if (threadIdx.x == CONSUMERS) {
        let_next_start();
        prefetch_map(x);
        prefetch_map(weight);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, CLUSTER * READERS);
        }
        barriers_ready();
    }
    cluster_sync();

    // 128 x 40 + 256 x 232 registers are those that 384 threads start with, 168 each. A block of two has too few
    // to start with for that: instead of a warpgroup, only a warp of it copies, and all have 96.
    if (threadIdx.x >= CONSUMERS) {
        if (RESIDENT == 1) fewer_registers<40>();
        if (threadIdx.x == CONSUMERS) produce(x, weight, job, ring, full, empty);
    } else {
        if (RESIDENT == 1) more_registers<232>();
        consume(job, ring, full, empty, staging, exchange);
    }
    // The other block may still arrive at barriers here.
    cluster_sync();
}
