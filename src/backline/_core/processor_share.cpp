#include "processor_share.hpp"

#include "call_arguments.hpp"
#include "clock.hpp"
#include "locks.hpp"
#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <climits>

namespace backline {
namespace {

ObjectSlot look;    // look() -> (threads, seconds): how many threads calls should use, and when to look again
ObjectSlot fewer;   // fewer(operation, plan, threads, args, kwargs) -> result, or NotImplemented
std::atomic<int64_t> due{INT64_MAX};  // on the clock, in nanoseconds
std::atomic<int> most{INT_MAX};       // threads, by the last look
std::atomic<uint64_t> looks{0};
thread_local bool inside = false;     // this thread looks, or runs a call on fewer threads

constexpr int64_t kSecond = 1000000000;

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

bool look_again() {
    due = wall_time() + kSecond;  // nobody else looks meanwhile
    Ref function(Py_XNewRef(look.get().get()));
    if (!function) return true;
    Inside guard;
    Ref answer(PyObject_CallNoArgs(function.get()));
    int threads;
    double seconds;
    if (!answer || !PyArg_ParseTuple(answer.get(), "id", &threads, &seconds)) return false;
    most = std::max(threads, 1);
    due = wall_time() + int64_t(std::clamp(seconds, 0.0, 3600.0) * double(kSecond));
    ++looks;
    return true;
}

void share_processors(PyObject *looking, PyObject *running) {
    const bool on = looking != Py_None;
    look.set(on ? looking : nullptr);
    fewer.set(on ? running : nullptr);
    most = INT_MAX;
    due = on ? 0 : INT64_MAX;
}

uint64_t share_looks() { return looks.load(); }

PyMethodDef methods[] = {
    function<share_processors>("share_processors",
                               "share_processors(look, fewer): who says how many threads calls should use, and who runs them on "
                               "fewer; None, None for nobody. Looks again at once."),
    function<share_looks>("share_looks", "How often the load was looked at."),
    {}};

}  // namespace

int shared_threads(int threads) {
    if (inside || team_limit() == 1) return threads;
    if (wall_time() >= due.load(std::memory_order_relaxed) && !look_again()) return -1;
    return std::min(threads, most.load(std::memory_order_relaxed));
}

PyObject *call_on_fewer(PyObject *operation, PyObject *plan, int threads, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Ref function(Py_XNewRef(fewer.get().get()));
    if (!function) return Py_NewRef(Py_NotImplemented);
    const CallArguments packed(args, nargsf, kwnames);
    Inside guard;
    return PyObject_CallFunction(function.get(), "OOiOO", operation, plan, threads, packed.positional.get(),
                                 packed.keywords.get());
}

int add_processor_share(PyObject *module) { return PyModule_AddFunctions(module, methods); }

}  // namespace backline
