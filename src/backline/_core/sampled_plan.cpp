#include "sampled_plan.hpp"

#include "boundary.hpp"
#include "clock.hpp"

#include <structmember.h>
#include <sys/resource.h>

#include <ctime>
#include <limits>

namespace backline {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;

int64_t thread_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

int64_t lost_processor() {
#ifdef RUSAGE_THREAD
    rusage usage{};
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : int64_t(usage.ru_nivcsw);
#else
    return 0;
#endif
}

PyObject *sampled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"plan", "sampler", "calls", "repeatable", nullptr};
    PyObject *plan, *sampler;
    long long calls;
    int repeatable;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLp", const_cast<char **>(names), &plan, &sampler, &calls, &repeatable))
        return nullptr;
    if (calls < 1) throw python_error(PyExc_ValueError, "the first call that is timed is the 1st or a later one, not the %lldth", calls);
    SampledPlan *self = as<SampledPlan>(checked(type->tp_alloc(type, 0)));
    new (&self->plan) ObjectSlot();
    new (&self->next) ObjectSlot();
    new (&self->left) std::atomic<int64_t>();
    new (&self->period) std::atomic<int64_t>();
    self->plan.set(plan);
    self->sampler = Py_NewRef(sampler);
    self->repeatable = repeatable != 0;
    self->rest(calls);
    return reinterpret_cast<PyObject *>(self);
}

void sampled_dealloc(PyObject *raw) {
    SampledPlan *self = as<SampledPlan>(raw);
    self->plan.set(nullptr);
    self->next.set(nullptr);
    Py_CLEAR(self->sampler);
    Py_TYPE(raw)->tp_free(raw);
}

PyObject *from_slot(ObjectSlot &slot) {
    const Held held = slot.get();
    return Py_NewRef(held ? held.get() : Py_None);
}

PyObject *get_plan(SampledPlan *self) { return from_slot(self->plan); }
PyObject *get_next(SampledPlan *self) { return from_slot(self->next); }

void set_plan(SampledPlan *self, PyObject *value) {
    if (!value || value == Py_None) throw python_error(PyExc_TypeError, "plan is a Plan");
    self->plan.set(value);
}

void set_next(SampledPlan *self, PyObject *value) { self->next.set(!value || value == Py_None ? nullptr : value); }

void time_after(SampledPlan *self, int64_t calls) { self->rest(calls < 1 ? kNever : calls); }

PyMethodDef sampled_methods[] = {
    method<time_after>("time_after", "time_after(calls): the call that is timed is that many calls from now; 0 times none any more."),
    {}};

PyGetSetDef sampled_getset[] = {attribute<get_plan, set_plan>("plan", "the Plan that calls run"),
                                attribute<get_next, set_next>("next", "the Plan that the timed call runs; None for `plan`"),
                                {}};

PyMemberDef sampled_members[] = {
    {"repeatable", T_BOOL, offsetof(SampledPlan, repeatable), READONLY, "whether a call whose trial fails is run again by `plan`"}, {}};

}  // namespace

PyTypeObject SampledPlanType = {PyVarObject_HEAD_INIT(nullptr, 0)};

void Stopwatch::start() {
    interruptions = lost_processor();
    cpu = thread_time();
    wall = wall_time();
}

void Stopwatch::stop() {
    wall = wall_time() - wall;
    cpu = thread_time() - cpu;
    interruptions = lost_processor() - interruptions;
}

bool tell_sampler(SampledPlan *self, PyObject *tried, int64_t calls, const Stopwatch &watch) {
    Ref done(PyObject_CallFunction(self->sampler, "OOLLLL", self, tried, (long long)calls, (long long)watch.wall, (long long)watch.cpu,
                                   (long long)watch.interruptions));
    if (done) return true;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyErr_WriteUnraisable(self->sampler);
    self->next.set(nullptr);
    self->rest(kNever);
    return true;
}

int add_sampled_plan_type(PyObject *module) {
    describe<SampledPlan>(SampledPlanType, "backline._core.SampledPlan", entry<sampled_new>,
                          "SampledPlan(plan, sampler, calls, repeatable): a Plan of which some calls are timed, the first after `calls`.\n\n"
                          "sampler(self, plan, calls, wall, cpu, interruptions) is told of each, in nanoseconds; -1 if the plan failed.");
    SampledPlanType.tp_dealloc = sampled_dealloc;
    SampledPlanType.tp_methods = sampled_methods;
    SampledPlanType.tp_members = sampled_members;
    SampledPlanType.tp_getset = sampled_getset;
    return PyModule_AddType(module, &SampledPlanType);
}

}  // namespace backline
