#include "independent_jobs.hpp"

#include "boundary.hpp"
#include "clock.hpp"

namespace backline {
namespace {

// Nanoseconds that a call on the team takes longer when its threads sleep: 20 to 100 us were seen on virtual processors, more after
// longer pauses.
constexpr int64_t kWaking = 40000;
// Nanoseconds of a library's call from which it uses the threads that it may use.
constexpr int64_t kLong = 500000;

std::atomic<int64_t> awake{INT64_MAX};  // nanoseconds for which threads of the team wait for work before they sleep

// Of the team that works for this thread.
thread_local struct {
    int64_t ran = INT64_MIN / 2;   // when it ran last,
    int64_t asked = INT64_MIN / 2; // and when jobs last came that it may run
    int64_t lost = 0;              // by jobs that it could have shared since it fell asleep
} team;

struct Timed {
    Job job;
    void *data;
    int64_t took;
};

void run_timed(int index, void *raw) {
    Timed &timed = *static_cast<Timed *>(raw);
    if (index > 0) return timed.job(index, timed.data);
    const int64_t begin = wall_time();
    timed.job(0, timed.data);
    timed.took = wall_time() - begin;
}

void team_stays_awake(double seconds) { awake = seconds < 9e9 ? int64_t(seconds * 1e9) : INT64_MAX; }

PyMethodDef methods[] = {
    function<team_stays_awake>("team_stays_awake", "Tell how many seconds the threads of the team wait for work before they sleep."), {}};

}  // namespace

void team_ran() { team.ran = team.asked = wall_time(); }

void library_ran(int64_t begin) {
    const int64_t end = wall_time();
    if (end - begin >= kLong) team.ran = team.asked = end;
}

void run_independent(int count, Job job, void *data, JobTime &took) {
    const int64_t begin = wall_time(), patience = awake.load(std::memory_order_relaxed);
    if (begin - team.ran <= patience) {
        run_jobs(count, job, data, false);
        took.set(team.ran - begin);
        return;
    }
    if (begin - team.asked > patience) team.lost = 0;
    const int64_t each = took.get();
    if (each && team.lost + (count - 1) * each < kWaking) {
        for (int i = 0; i < count; ++i) job(i, data);
        team.asked = wall_time();
        took.set((team.asked - begin) / count);
        team.lost += (count - 1) * took.get();
        return;
    }
    Timed timed{job, data, 0};  // the time of the whole would be that of waking, too
    run_jobs(count, run_timed, &timed, false);
    took.set(timed.took);
}

int add_independent_jobs(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
