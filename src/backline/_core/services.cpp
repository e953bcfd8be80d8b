#include "services.hpp"

#include "boundary.hpp"
#include "independent_jobs.hpp"

#include <algorithm>

namespace backline {
namespace {

// What `share` elements take, of which callers say that they are worth a thread.
constexpr int64_t kShareTime = 3000;

using Part = void (*)(void *data, int64_t first, int64_t count);

struct Division {
    Part part;
    void *data;
    int64_t total, parts;
};

void run_part(int index, void *raw) {
    const Division &d = *static_cast<Division *>(raw);
    const int64_t first = d.total * index / d.parts, end = d.total * (index + 1) / d.parts;
    d.part(d.data, first, end - first);
}

int for_parts(int64_t total, int64_t share, int threads, Part part, void *data) {
    if (total < share) {
        part(data, 0, total);
        return 0;
    }
    require_threads(threads);
    const int64_t parts = std::max<int64_t>(std::min<int64_t>(std::min(threads, team_limit()), total / share), 1);
    Division division{part, data, total, parts};
    ReleaseGil released;
    NativeCall native;
    JobTime each(kShareTime * (total / parts) / share);
    if (parts > 1) run_independent(int(parts), run_part, &division, each);
    else run_part(0, &division);
    return 0;
}

const Services services{entry<for_parts>, raise_current_exception};

}  // namespace

int add_services(PyObject *module) {
    Ref capsule(PyCapsule_New(const_cast<Services *>(&services), kServices, nullptr));
    return capsule ? PyModule_AddObjectRef(module, "services", capsule.get()) : -1;
}

}  // namespace backline
