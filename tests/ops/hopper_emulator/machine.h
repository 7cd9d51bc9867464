// What a Hopper GPU offers to a kernel's threads, modelled on a CPU. machine.cpp runs them.
#pragma once

#include <functional>

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// A matrix of 16-bit elements as the copy engine sees it: boxes of it have `box_rows` rows of 64 elements.
struct TensorMap {
    const u16* elements;
    long long rows, columns, stride;
    int box_rows;
};

struct Dimensions {
    u32 x;
};
// Of the thread that is running.
extern Dimensions threadIdx, blockIdx, gridDim;

namespace machine {

constexpr int WARP = 32;
// Where a block's own shared memory starts: Hopper keeps the first 1024 bytes.
constexpr u32 FIRST_SHARED = 1024;

// Ends the launch: the kernel did what it must not do.
[[noreturn]] void fail(const char* what);

// Now and then, lets others run, and at times as far as they get. In front of all that others may notice.
void pause();
// Lets others run until it holds.
void wait_until(const std::function<bool()>& condition);

// `bytes` of this block's dynamic shared memory.
unsigned char* shared(u32 address, u32 bytes);

// All 32 threads of the warp come here and see what each brought. Orders no accesses to memory.
void exchange(u32 brought, u32 (&all)[WARP]);
void meet_warp();
void meet_cluster();
// Named barrier of `threads`, who arrive, and wait or don't. Number 0 is __syncthreads'.
void arrive_at_named_barrier(int which, int threads);
void meet_at_named_barrier(int which, int threads);
void meet_block();

// mbarrier objects, which count arrivals and the bytes of copies.
void barrier_init(u32 barrier, u32 arrivals);
void barrier_arrive(u32 barrier, u32 rank);
void barrier_expect(u32 barrier, u32 bytes);
void barrier_wait(u32 barrier, u32 parity);

// Copies happen later, in any order. To the blocks of the cluster from `first_rank` to `last_rank`.
void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier, u32 first_rank, u32 last_rank);
u32 own_rank();

// 16 bytes from global memory, zeros if `from` is null, which come later, too; and this thread's arrival at a barrier
// of its block when all those have come that it has asked for until now.
void copy_chunk(u32 to, const void* from);
void arrive_when_copied(u32 barrier);

// A warpgroup's product of matrices A (64, 16) and B (16, columns) of elements that `decode` reads, by
// descriptors; `sums` are this thread's. Products happen as late as the kernel allows, when it waits for them, and
// until then all that they read must stay, whichever warp it is for: nobody promises when a warp reads what.
struct Product {
    float* sums;
    int columns;
    u64 a, b;
    float (*decode)(u16);
    bool overwrites = false;
    bool sums_over_rows = false; // of B; else along them
    // If A is in registers: this thread's two rows of it.
    bool has_rows = false;
    float rows[2][16];
};
void start_product(const Product& product);
// Products may read what a thread has stored, and copies may overwrite what it has loaded, only when it has fenced it.
void stored(u32 address, u32 bytes);
void loaded(u32 address, u32 bytes);
void fence_async();
void commit_products();
// Until at most `left` of the committed groups remain.
void wait_for_products(int left);

struct Launch {
    u32 blocks, threads, cluster;     // of the grid, of a block, of a cluster
    u32 first_dynamic, dynamic_bytes; // shared memory
    u32 at_a_time;                    // blocks that run together, whole clusters of them
    u32 seed;                         // of the order in which everything happens
    void (*thread)();
};
// Null, or what went wrong.
const char* run(const Launch& launch);

} // namespace machine
