// Threads are fibers of one thread of the CPU, switched where the machine is asked for something. A seed
// decides who goes on and which copy arrives next, so that a failure can be repeated.

#include "machine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

Dimensions threadIdx, blockIdx, gridDim;

namespace machine {
namespace {

constexpr int ROW_BYTES = 128, CHUNK_BYTES = 16, NAMED_BARRIER_THREADS = 256;
constexpr size_t STACK_BYTES = 1 << 16;
// Never written: NaN in bf16, and in fp16 far from what a test multiplies.
constexpr unsigned char UNWRITTEN = 0xFF;

struct Barrier {
    u32 arrivals, pending, phase = 0;
    long long bytes = 0; // expected and not yet copied; copies may come before they are expected

    void settle() {
        if (pending == 0 && bytes == 0) {
            phase ^= 1;
            pending = arrivals;
        }
    }
    void arrive() {
        if (pending == 0) fail("more arrivals at a barrier than it counts");
        --pending;
        settle();
    }
};

// `size` threads, the last of whom lets those go on who wait.
struct Meeting {
    int size, present = 0;
    u64 held = 0;

    void arrive() {
        if (++present == size) {
            present = 0;
            ++held;
        }
    }
    void attend();
};

struct Warp {
    Meeting meeting{WARP};
    u32 brought[WARP];
};

struct Block {
    u32 index, rank, first_shared;
    std::vector<Block>* cluster;
    Meeting* cluster_meeting;
    std::vector<unsigned char> shared;
    std::map<u32, Barrier> barriers{};
    Warp warps[WARPS]{};
    std::array<Meeting, 2> named{Meeting{NAMED_BARRIER_THREADS}, Meeting{NAMED_BARRIER_THREADS}};
    int running = THREADS;

    unsigned char* at(u32 address, u32 bytes) {
        if (address < first_shared || address + bytes > first_shared + shared.size()) {
            fail("access beyond the shared memory that the launch asked for");
        }
        return &shared[address - first_shared];
    }
    // For another block of the cluster, or the copy engine, which may come too early or too late.
    Barrier& barrier(u32 address) {
        if (running == 0) fail("a block's barrier is used after the block has ended");
        const auto found = barriers.find(address);
        if (found == barriers.end()) fail("a barrier is used before it is initialised");
        return found->second;
    }
};

struct Fiber {
    Block* block;
    u32 thread;
    std::unique_ptr<char[]> stack;
    ucontext_t context;
    bool done = false;
    std::function<bool()> may_go_on; // if empty, it may
    std::vector<Product> open;
    std::vector<std::vector<Product>> committed;
};

struct Copy {
    Block* block;
    TensorMap map;
    int column, row;
    u32 to, barrier;
};

struct Fault {
    const char* what;
};

ucontext_t scheduler;
Fiber* me;
std::mt19937 chance;
std::vector<Copy> copies;
const char* fault; // of the thread that ran last
void (*thread_function)();

void let_others_run() { swapcontext(&me->context, &scheduler); }

void wait_until(const std::function<bool()>& condition) {
    // Checked again: it may have held before the thread's turn came, and no longer.
    while (!condition()) {
        me->may_go_on = condition;
        let_others_run();
    }
}

void Meeting::attend() {
    const u64 before = held;
    arrive();
    wait_until([this, before] { return held != before; });
}

// The 128-byte swizzle: within 1024 bytes, the row's number is XORed into the number of the 16-byte chunk.
u32 swizzled(u32 address) { return address ^ (address / ROW_BYTES % 8 * CHUNK_BYTES); }

void perform(const Copy& copy) {
    const TensorMap& map = copy.map;
    for (int i = 0; i < map.box_rows; ++i) {
        for (int j = 0; j < ROW_BYTES / 2; ++j) {
            const long long row = copy.row + i, column = copy.column + j;
            const bool inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
            const u16 element = inside ? map.elements[row * map.stride + column] : 0;
            memcpy(copy.block->at(swizzled(copy.to + i * ROW_BYTES + j * 2), 2), &element, 2);
        }
    }
    Barrier& barrier = copy.block->barrier(copy.barrier);
    barrier.bytes -= map.box_rows * ROW_BYTES;
    barrier.settle();
}

void perform_any_copy() {
    std::swap(copies[chance() % copies.size()], copies.back());
    const Copy copy = copies.back();
    copies.pop_back();
    perform(copy);
}

// Row `row` of a matrix of 16 columns that a descriptor of wgmma tells of.
void read_row(u64 descriptor, int row, float (*decode)(u16), float (&out)[16]) {
    if (descriptor >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
    const u32 start = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    for (int chunk = 0; chunk < 2; ++chunk) {
        const u32 address = start + row / 8 * stride + row % 8 * ROW_BYTES + chunk * CHUNK_BYTES;
        u16 elements[8];
        memcpy(elements, me->block->at(swizzled(address), CHUNK_BYTES), CHUNK_BYTES);
        for (int i = 0; i < 8; ++i) out[chunk * 8 + i] = decode(elements[i]);
    }
}

// Sum 4 g + 2 h + i of a thread is column 8 g + 2 (lane % 4) + i of row 16 warp + lane / 4 + 8 h.
void perform(const Product& product) {
    const int warp = me->thread % 128 / WARP, lane = me->thread % WARP;
    float a[2][16], b[16];
    for (int h = 0; h < 2; ++h) read_row(product.a, 16 * warp + lane / 4 + 8 * h, product.decode, a[h]);
    for (int g = 0; g < product.columns / 8; ++g) {
        for (int i = 0; i < 2; ++i) {
            read_row(product.b, 8 * g + 2 * (lane % 4) + i, product.decode, b);
            for (int h = 0; h < 2; ++h) {
                float& sum = product.sums[4 * g + 2 * h + i];
                for (int k = 0; k < 16; ++k) sum += a[h][k] * b[k];
            }
        }
    }
}

void enter_thread() {
    try {
        thread_function();
    } catch (const Fault& found) {
        fault = found.what;
    }
    me->done = true;
    --me->block->running;
    let_others_run();
}

void resume(Fiber& fiber) {
    me = &fiber;
    fiber.may_go_on = nullptr;
    threadIdx.x = fiber.thread;
    blockIdx.x = fiber.block->index;
    swapcontext(&scheduler, &fiber.context);
    if (fault) fail(fault);
}

void start(Fiber& fiber) {
    fiber.stack.reset(new char[STACK_BYTES]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, enter_thread, 0);
}

// A round: some of those who may go on do, in any order. False if nobody could.
bool run_some(std::vector<Fiber*>& running) {
    std::vector<Fiber*> able;
    for (Fiber* fiber : running) {
        if (!fiber->may_go_on || fiber->may_go_on()) able.push_back(fiber);
    }
    if (able.empty()) return false;
    std::shuffle(able.begin(), able.end(), chance);
    able.resize(1 + chance() % able.size());
    for (Fiber* fiber : able) {
        resume(*fiber);
        if (!copies.empty() && chance() % 64 == 0) perform_any_copy();
    }
    return true;
}

void run_cluster(const Launch& launch, u32 first_block) {
    std::vector<Block> blocks;
    Meeting meeting{static_cast<int>(launch.cluster) * THREADS};
    for (u32 rank = 0; rank < launch.cluster; ++rank) {
        std::vector<unsigned char> shared(launch.dynamic_bytes, UNWRITTEN);
        blocks.push_back(Block{first_block + rank, rank, launch.first_dynamic, &blocks, &meeting, shared});
    }
    std::vector<Fiber> fibers(launch.cluster * THREADS);
    std::vector<Fiber*> running;
    for (u32 i = 0; i < fibers.size(); ++i) {
        fibers[i].block = &blocks[i / THREADS];
        fibers[i].thread = i % THREADS;
        start(fibers[i]);
        running.push_back(&fibers[i]);
    }
    while (!running.empty()) {
        if (!run_some(running)) {
            if (copies.empty()) fail("deadlock: every thread waits");
            perform_any_copy();
        }
        const auto done = [](const Fiber* fiber) { return fiber->done; };
        running.erase(std::remove_if(running.begin(), running.end(), done), running.end());
    }
    if (!copies.empty()) fail("the kernel ended before its copies");
    for (const Block& block : blocks) {
        for (const auto& [address, barrier] : block.barriers) {
            if (barrier.bytes || barrier.pending != barrier.arrivals) fail("the kernel ended in mid-phase");
        }
    }
}

} // namespace

void fail(const char* what) { throw Fault{what}; }

void pause() {
    if (chance() % 8 == 0) let_others_run();
}

unsigned char* shared(u32 address, u32 bytes) { return me->block->at(address, bytes); }

void exchange(u32 brought, u32 (&all)[WARP]) {
    Warp& warp = me->block->warps[me->thread / WARP];
    warp.brought[me->thread % WARP] = brought;
    warp.meeting.attend();
    memcpy(all, warp.brought, sizeof all);
    // Nobody brings the next thing before all have seen this one.
    warp.meeting.attend();
}

void meet_warp() { me->block->warps[me->thread / WARP].meeting.attend(); }
void meet_cluster() { me->block->cluster_meeting->attend(); }
void arrive_at_named_barrier(int which) { me->block->named.at(which).arrive(); }
void meet_at_named_barrier(int which) { me->block->named.at(which).attend(); }

void barrier_init(u32 barrier, u32 arrivals) { me->block->barriers[barrier] = Barrier{arrivals, arrivals}; }

void barrier_arrive(u32 barrier, u32 rank) {
    pause();
    (*me->block->cluster)[rank].barrier(barrier).arrive();
}

void barrier_expect(u32 barrier, u32 bytes) {
    pause();
    Barrier& own = me->block->barrier(barrier);
    own.bytes += bytes;
    own.arrive();
}

void barrier_wait(u32 barrier, u32 parity) {
    pause();
    const Barrier& own = me->block->barrier(barrier);
    wait_until([&own, parity] { return own.phase != parity; });
}

void copy_box(u32 to, const TensorMap& map, int column, int row, u32 barrier, u32 first_rank, u32 last_rank) {
    if (to % 1024) fail("a swizzled box that doesn't start at a multiple of 1024 bytes");
    for (u32 rank = first_rank; rank <= last_rank; ++rank) {
        copies.push_back(Copy{&(*me->block->cluster)[rank], map, column, row, to, barrier});
    }
    pause();
}

u32 own_rank() { return me->block->rank; }

void start_product(const Product& product) { me->open.push_back(product); }

void commit_products() {
    me->committed.push_back(std::move(me->open));
    me->open.clear();
    pause();
}

void wait_for_products(int left) {
    pause();
    while (static_cast<int>(me->committed.size()) > left) {
        for (const Product& product : me->committed.front()) perform(product);
        me->committed.erase(me->committed.begin());
    }
    meet_warp();
}

const char* run(const Launch& launch) {
    chance.seed(launch.seed);
    copies.clear();
    fault = nullptr;
    gridDim.x = launch.blocks;
    thread_function = launch.thread;
    try {
        for (u32 block = 0; block < launch.blocks; block += launch.cluster) run_cluster(launch, block);
    } catch (const Fault& found) {
        return found.what;
    }
    return nullptr;
}

} // namespace machine
