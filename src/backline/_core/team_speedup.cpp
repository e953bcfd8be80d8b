// How much more all threads of the team do in a time than one of them does alone.
#include "boundary.hpp"
#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace backline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 3000;    // of the work, 30 us or so
constexpr int kStreams = 12;    // independent of each other, so that a core has as much to do as it can in every cycle
constexpr int kRepeats = 5;     // of which the fastest count: others may interrupt some
constexpr double kWait = 5e-3;  // seconds for which threads wait for each other, at most

// Shifts and exclusive ors keep a core busy with any compiler and instruction set: two threads on one core take twice as long.
// Not inlined: one and the same code is timed alone and together.
[[gnu::noinline]] uint64_t work(uint64_t seed) {
    uint64_t x[kStreams];
    for (int i = 0; i < kStreams; ++i) x[i] = seed + uint64_t(i) + 1;
    for (int step = 0; step < kSteps; ++step) {
        for (int i = 0; i < kStreams; ++i) {
            x[i] ^= x[i] << 13;
            x[i] ^= x[i] >> 7;
            x[i] ^= x[i] << 17;
        }
    }
    uint64_t sum = 0;
    for (uint64_t part : x) sum += part;
    return sum;
}

struct Together {
    struct Times {
        Clock::time_point begin, end;
    };
    int count;
    std::atomic<int> ready{0};
    std::vector<Times> times;
    std::atomic<uint64_t> sum{0};  // what is computed is used

    Times timed(int index) {
        const auto begin = Clock::now();
        sum += work(sum + uint64_t(index));  // other numbers each time, so that no call is left out
        return {begin, Clock::now()};
    }
};

double seconds(Clock::time_point begin, Clock::time_point end) { return std::chrono::duration<double>(end - begin).count(); }

void one_of(int index, void *raw) {
    Together &t = *static_cast<Together *>(raw);
    ++t.ready;
    const auto asked = Clock::now();
    while (t.ready < t.count && seconds(asked, Clock::now()) < kWait) {}
    t.times[size_t(index)] = t.timed(index);
}

double team_speedup(int threads) {
    Together t;
    t.count = std::clamp(threads, 1, team_limit());
    t.times.resize(size_t(t.count));
    require_threads(t.count);
    ReleaseGil released;
    NativeCall native;
    double alone = 1, together = 1;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
        const auto one = t.timed(0);
        alone = std::min(alone, seconds(one.begin, one.end));
        t.ready = 0;
        run_jobs(t.count, one_of, &t, true);
        // From the first begin to the last end: threads that take turns on a processor are not together.
        auto all = t.times[0];
        for (const auto &each : t.times) {
            all.begin = std::min(all.begin, each.begin);
            all.end = std::max(all.end, each.end);
        }
        together = std::min(together, seconds(all.begin, all.end));
    }
    return t.count * alone / together;
}

PyMethodDef methods[] = {
    function<team_speedup>("team_speedup", "How much more so many threads of the team do in a time than one does alone."),
    {}};

}  // namespace

int add_team_speedup(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
