#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "team.hpp"

#include "boundary.hpp"
#include "independent_jobs.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace backline {
namespace {

using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);  // GOMP_parallel
using Number = int (*)();                                                 // omp_get_thread_num, omp_get_num_threads

std::atomic<Parallel> omp_parallel{nullptr};  // bound after the other two, which are there where it is
std::atomic<Number> omp_number{nullptr};
std::atomic<Number> omp_size{nullptr};
std::atomic<int> limit{1 << 30};
std::atomic<bool> apart{false};
std::atomic<uint64_t> moves{0};


// A thread of libgomp's. The kernel gives its id to another thread once it has ended, so an id is used only under this lock, and
// as long as `alive`: the thread itself clears that, under the lock, on its way out.
struct Worker {
    pid_t id = pid_t(syscall(SYS_gettid));
    bool alive = true;
};
std::mutex &workers_lock = *new std::mutex;  // threads may end after static objects are destroyed
std::vector<pid_t> &worker_ids = *new std::vector<pid_t>;
struct WorkerHere {
    std::shared_ptr<Worker> worker = std::make_shared<Worker>();
    WorkerHere() {
        std::lock_guard<std::mutex> guard(workers_lock);
        worker_ids.push_back(worker->id);
    }
    ~WorkerHere() {
        std::lock_guard<std::mutex> guard(workers_lock);
        worker->alive = false;
        worker_ids.erase(std::find(worker_ids.begin(), worker_ids.end(), worker->id));
    }
};
// The threads that libgomp keeps for this thread; it has a pool for each one that opens regions.
thread_local struct {
    int processor = -1, count = 0;
    std::shared_ptr<Worker> each[kMostApart];
} workers;

thread_local bool in_region = false;  // set in the threads that a region has brought

struct Region {
    int count;
    Job job;
    void *data;
    bool together;  // jobs wait for one another
};

// Jobs from..count-1 on threads of their own, and job 0 here. Called below frames of C libraries, so nothing is thrown.
void run_with_threads(const Region &r, int from) noexcept {
    std::vector<std::thread> helpers;
    auto last = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    int next = from;
    while (next < r.count) {
        try {
            helpers.reserve(size_t(r.count - from));  // a vector that had to grow would fail after its thread had started
            helpers.emplace_back(r.job, next, r.data);
            ++next;
        } catch (const std::exception &error) {  // std::system_error, or std::bad_alloc
            // require_threads has seen so many threads start: other programs took them since. Independent jobs run here instead.
            if (!r.together) break;
            if (std::chrono::steady_clock::now() > last) {
                std::fprintf(stderr, "backline: a call on %d threads cannot go on: %s\n", r.count, error.what());
                std::abort();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
    r.job(0, r.data);
    for (; next < r.count; ++next) r.job(next, r.data);
    for (auto &t : helpers) t.join();
}

std::atomic<int> startable{1};  // threads that were seen running at once

void region_body(void *raw) {
    const Region &r = *static_cast<Region *>(raw);
    int number = omp_number.load()(), size = omp_size.load()();
    if (number >= r.count) return;
    // The runtime granted a smaller team (OMP_THREAD_LIMIT, OMP_DYNAMIC): the missing jobs get threads of their own.
    if (number == 0 && size < r.count) return run_with_threads(r, size);
    in_region = number > 0;
    r.job(number, r.data);
    in_region = false;
}

}  // namespace

int team_limit() { return limit.load(std::memory_order_relaxed); }

void require_threads(int threads) {
    threads = std::min(threads, team_limit());
    if (threads <= startable.load(std::memory_order_relaxed)) return;
    std::mutex lock;
    std::condition_variable changed;
    bool go = false;
    std::vector<std::thread> started;
    started.reserve(size_t(threads));
    int error = 0;
    for (int i = 1; i < threads && !error; ++i) {
        try {
            started.emplace_back([&] {
                std::unique_lock<std::mutex> guard(lock);
                changed.wait(guard, [&] { return go; });
            });
        } catch (const std::system_error &failure) {
            error = failure.code().value();
        } catch (const std::bad_alloc &) {
            error = ENOMEM;
        }
    }
    {
        std::lock_guard<std::mutex> guard(lock);
        go = true;
    }
    changed.notify_all();
    for (auto &t : started) t.join();
    if (error) throw TooManyThreads{threads, int(started.size()) + 1, error};
    int before = startable;
    while (before < threads && !startable.compare_exchange_weak(before, threads)) {}
}

namespace {

struct Roll {
    std::shared_ptr<Worker> *each;
    std::thread::id caller;
};

void note_worker(int index, void *raw) {
    if (index == 0) return;
    const Roll &roll = *static_cast<Roll *>(raw);
    auto &slot = roll.each[index - 1];
    slot.reset();
    // Where no thread could be started, the job runs in the caller, which must not be kept off its own processor.
    if (std::this_thread::get_id() == roll.caller) return;
    try {
        thread_local WorkerHere here;
        slot = here.worker;
    } catch (const std::bad_alloc &) {
    }
}

}  // namespace

void keep_apart(int threads) {
    if (in_region || threads < 2 || threads > kMostApart || !omp_parallel || team_limit() == 1) return;
    if (workers.count < threads - 1) {
        Roll roll{workers.each, std::this_thread::get_id()};
        Region r{threads, note_worker, &roll, false};
        omp_parallel.load()(region_body, &r, unsigned(threads), 0);
        workers.count = threads - 1;
        workers.processor = -1;
    }
    if (!apart) return;
    int here = sched_getcpu();
    if (here == workers.processor) return;
    cpu_set_t mine;
    if (here < 0 || sched_getaffinity(0, sizeof mine, &mine) != 0) return;
    CPU_CLR(here, &mine);
    workers.processor = here;
    if (CPU_COUNT(&mine) < threads - 1) return;  // fewer processors than threads: some have to share
    std::lock_guard<std::mutex> guard(workers_lock);
    for (int i = 0; i < workers.count; ++i) {
        const Worker *worker = workers.each[i].get();
        if (!worker || !worker->alive || sched_setaffinity(worker->id, sizeof mine, &mine) != 0) workers.count = 0;  // ask anew next time
    }
    ++moves;
}

void run_jobs(int count, Job job, void *data, bool together) {
    Region r{count, job, data, together};
    if (count == 1) return job(0, data);
    if (team_limit() == 1 || !omp_parallel) {
        run_with_threads(r, 1);
    } else {
        keep_apart(count);
        omp_parallel.load()(region_body, &r, unsigned(count), 0);
    }
    team_ran();
}

namespace {

// OpenBLAS's openblas_threads_callback: its jobs run on our team instead of on a second pool.
using BlasJob = void (*)(int, void *, int);
struct BlasJobs {
    BlasJob job;
    size_t size;
    char *data;
    int extra;
};
void run_blas_job(int index, void *raw) {
    const BlasJobs &b = *static_cast<BlasJobs *>(raw);
    b.job(index, b.data + size_t(index) * b.size, b.extra);
}
void jobs_callback(int, BlasJob job, int count, size_t size, void *data, int extra) {
    BlasJobs b{job, size, static_cast<char *>(data), extra};
    run_jobs(count, run_blas_job, &b, true);
}

void team_bind(void *parallel, void *number, void *size) {
    omp_number = reinterpret_cast<Number>(number);
    omp_size = reinterpret_cast<Number>(size);
    omp_parallel = reinterpret_cast<Parallel>(parallel);
}

void team_keep_apart(bool on) { apart = on; }

uint64_t team_moves() { return moves.load(); }

PyObject *team_threads() {
    std::vector<pid_t> ids;
    {  // nothing of Python's runs under the lock: a thread of the team may wait for it
        std::lock_guard<std::mutex> guard(workers_lock);
        ids = worker_ids;
    }
    Ref list(checked(PyList_New(Py_ssize_t(ids.size()))));
    for (size_t i = 0; i < ids.size(); ++i) PyList_SET_ITEM(list.get(), Py_ssize_t(i), checked(PyLong_FromLong(ids[i])));
    return list.release();
}

// The least of several tries: another program may have had the processor meanwhile.
double pause_seconds() {
    using Clock = std::chrono::steady_clock;
    constexpr int kPauses = 500;
    double least = 1;
    for (int round = 0; round < 5; ++round) {
        auto begin = Clock::now();
        for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
            _mm_pause();
#elif defined(__aarch64__)
            asm volatile("yield" ::: "memory");
#else
            std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
        }
        least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count() / kPauses);
    }
    return std::max(least, 1e-9);
}

bool team_bound() { return omp_parallel.load() != nullptr; }

void set_team_limit(int64_t threads) {
    if (threads < 1) throw python_error(PyExc_ValueError, "a team has at least one thread");
    limit = int(std::min(threads, int64_t(1) << 30));
}

auto jobs_callback_address() { return &jobs_callback; }

struct Marks {
    std::atomic<int> at_once{0}, most{0};
    std::atomic<uint64_t> seen{0};
    int count;
};
void mark_job(int index, void *raw) {
    Marks &m = *static_cast<Marks *>(raw);
    m.seen |= uint64_t(1) << index;
    int now = ++m.at_once;
    int most = m.most;
    while (now > most && !m.most.compare_exchange_weak(most, now)) {}
    // All jobs must be in flight at the same time, as OpenBLAS's are when they wait for each other's panels.
    while (m.most < m.count) std::this_thread::yield();
    --m.at_once;
}

PyObject *team_check(long jobs) {
    if (jobs < 1 || jobs > 64) throw python_error(PyExc_ValueError, "team_check takes 1 to 64 jobs");
    Marks m;
    m.count = int(jobs);
    require_threads(m.count);
    {
        ReleaseGil released;
        NativeCall native;
        run_jobs(m.count, mark_job, &m, true);
    }
    return Py_BuildValue("iK", m.most.load(), (unsigned long long)m.seen.load());
}

// Flush-to-zero and denormals-are-zero of the processor, where it has them as a mode of each thread.
bool set_flush(bool on) {
#if defined(__x86_64__)
    const unsigned both = 0x8000u | 0x0040u;
    unsigned mode = _mm_getcsr();
    _mm_setcsr(on ? mode | both : mode & ~both);
    return true;
#elif defined(__aarch64__)
    const uint64_t bit = uint64_t(1) << 24;
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    mode = on ? mode | bit : mode & ~bit;
    asm volatile("msr fpcr, %0" : : "r"(mode));
    return true;
#else
    (void)on;
    return false;
#endif
}

bool flush_denormal(bool on, int threads) {
    bool works = set_flush(on);
    threads = std::min(threads, team_limit());
    if (works && threads > 1 && omp_parallel) {
        require_threads(threads);
        run_jobs(threads, [](int, void *data) { set_flush(*static_cast<bool *>(data)); }, &on, false);
    }
    return works;
}

struct Shares {
    char *memory;
    int64_t bytes;
    int count;
};
void fill_share(int index, void *raw) {
    const Shares &s = *static_cast<Shares *>(raw);
    const int64_t first = s.bytes * index / s.count;
    std::memset(s.memory + first, 1, size_t(s.bytes * (index + 1) / s.count - first));
}

void fill_shares(PyObject *object, int threads) {
    struct Memory {
        Py_buffer view;
        explicit Memory(PyObject *object) {
            if (PyObject_GetBuffer(object, &view, PyBUF_WRITABLE) < 0) throw PythonError();
        }
        ~Memory() { PyBuffer_Release(&view); }
    } memory(object);
    Shares shares{static_cast<char *>(memory.view.buf), memory.view.len, std::clamp(threads, 1, team_limit())};
    require_threads(shares.count);
    ReleaseGil released;
    NativeCall native;
    run_jobs(shares.count, fill_share, &shares, false);
}

PyMethodDef methods[] = {
    function<fill_shares>("fill_shares", "Fill memory with ones, an equal share of it by each of so many threads of the team."),
    function<flush_denormal>("flush_denormal",
                             "Set (True) or clear the mode that takes subnormal numbers for zero, in this thread and so many of the team's; "
                             "False where the processor has no such mode."),
    function<team_bind>("team_bind", "Bind the addresses of GOMP_parallel, omp_get_thread_num, omp_get_num_threads."),
    function<team_keep_apart>("team_keep_apart", "Keeps sleeping threads of the team off the caller's processor, or lets them stay there."),
    function<team_moves>("team_moves", "How often the team's threads were given other processors."),
    function<team_threads>("team_threads", "Identifiers of the threads of the team that have run for threads of this process."),
    function<pause_seconds>("pause_seconds", "Seconds that a pause of the processor takes, as loops have it that wait."),
    function<team_bound>("team_bound", "Whether an OpenMP runtime is bound."),
    function<set_team_limit>("set_team_limit", "Upper bound of every thread count from now on (1 in a forked child)."),
    function<jobs_callback_address>(
        "jobs_callback_address", "Address of a function with the signature of OpenBLAS's thread callback that runs its jobs on the team."),
    function<team_check>("team_check", "Run n jobs that wait for each other; returns (most at once, bit set of the jobs seen)."),
    {}};

}  // namespace

int add_team(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
