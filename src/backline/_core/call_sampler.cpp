#include "call_sampler.hpp"

#include "boundary.hpp"
#include "call_arguments.hpp"
#include "scope_state.hpp"

#include <structmember.h>

namespace backline {
namespace {

// The samplers whose functions run in this thread, innermost first. What they call is the call that they were given, or one that
// repeats it: samplers that saw it before, those between the program and the innermost one here, do not see it again.
struct Running {
    explicit Running(PyObject *sampler) : sampler(sampler), up(innermost) { innermost = this; }
    ~Running() { innermost = up; }
    Running(const Running &) = delete;
    Running &operator=(const Running &) = delete;

    static bool here(PyObject *sampler) {
        for (const Running *each = innermost; each; each = each->up)
            if (each->sampler == sampler) return true;
        return false;
    }

    PyObject *sampler;
    Running *up;
    static thread_local Running *innermost;
};

thread_local Running *Running::innermost = nullptr;

CallSampler *made(PyObject *run, int64_t calls, bool every_call, PyObject *outer) {
    CallSampler *self = as<CallSampler>(checked(CallSamplerType.tp_alloc(&CallSamplerType, 0)));
    new (&self->left) std::atomic<int64_t>(calls);
    self->run = Py_NewRef(run);
    self->outer = Py_NewRef(outer);
    self->every_call = every_call;
    return self;
}

PyObject *sampler_new(PyTypeObject *, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"run", "calls", "outer", nullptr};
    PyObject *run, *outer = Py_None;
    long long calls;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|O", const_cast<char **>(names), &run, &calls, &outer)) return nullptr;
    if (calls < 0) throw python_error(PyExc_ValueError, "the first call that is due is the 1st or a later one, not the %lldth", calls);
    return reinterpret_cast<PyObject *>(made(run, calls, calls == 0, outer));
}

// An Event that a tracer above this one passes on.
PyObject *sampler_call(PyObject *raw, PyObject *args, PyObject *kwargs) {
    PyObject *outer = as<CallSampler>(raw)->outer;
    return outer == Py_None ? Py_NewRef(Py_None) : PyObject_Call(outer, args, kwargs);
}

PyObject *over(CallSampler *self, PyObject *listener) {
    Ref further(is_call_sampler(self->outer) ? over(as<CallSampler>(self->outer), listener) : Py_NewRef(listener));
    return reinterpret_cast<PyObject *>(made(self->run, self->left.load(std::memory_order_relaxed), self->every_call, further.get()));
}

void after(CallSampler *self, int64_t calls) { self->left.store(calls < 1 ? 1 : calls, std::memory_order_relaxed); }

using SamplerReferences = References<CallSampler, &CallSampler::run, &CallSampler::outer>;

PyMethodDef sampler_methods[] = {method<after>("after", "after(calls): the next call that is due is that many calls from now."),
                                 method<over>("over", "over(listener): one like it, and like those beyond it, to whose calls `listener` listens."),
                                 {}};

PyMemberDef sampler_members[] = {
    {"outer", T_OBJECT_EX, offsetof(CallSampler, outer), READONLY, "who listens to the calls, or None"}, {}};

}  // namespace

PyTypeObject CallSamplerType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Ref due_sampler(Ref &tracer, bool counts) {
    Ref whole(Py_XNewRef(process_wide_tracer().get()));
    const Running *running = Running::innermost;
    bool sees = counts && !running;
    while (tracer && tracer != whole && is_call_sampler(tracer.get())) {
        if (sees && as<CallSampler>(tracer.get())->take_turn()) return std::move(tracer);
        if (running && tracer.get() == running->sampler) sees = counts;
        PyObject *outer = as<CallSampler>(tracer.get())->outer;
        tracer.reset(outer == Py_None ? nullptr : Py_NewRef(outer));
    }
    if (whole && is_call_sampler(whole.get())) {
        if (counts && !Running::here(whole.get()) && as<CallSampler>(whole.get())->take_turn()) return whole;
        if (tracer == whole) tracer.reset();
    } else if (!tracer) {
        tracer = std::move(whole);
    }
    return {};
}

PyObject *call_by_sampler(PyObject *sampler, PyObject *operation, PyObject *plan, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const CallArguments packed(args, nargsf, kwnames);
    const Running running(sampler);
    return PyObject_CallFunctionObjArgs(as<CallSampler>(sampler)->run, sampler, operation, plan, packed.positional.get(),
                                        packed.keywords.get(), nullptr);
}

int add_call_sampler_type(PyObject *module) {
    describe<CallSampler>(CallSamplerType, "backline._core.CallSampler", entry<sampler_new>,
                          "CallSampler(run, calls, outer=None): a tracer that runs one call in some itself, the first after `calls`, all "
                          "for 0.\n\nrun(self, operation, plan, args, kwargs) returns the result of a call that is due; `outer` listens.",
                          Py_TPFLAGS_HAVE_GC);
    CallSamplerType.tp_dealloc = SamplerReferences::dealloc;
    CallSamplerType.tp_traverse = SamplerReferences::traverse;
    CallSamplerType.tp_clear = SamplerReferences::clear;
    CallSamplerType.tp_call = entry<sampler_call>;
    CallSamplerType.tp_methods = sampler_methods;
    CallSamplerType.tp_members = sampler_members;
    return PyModule_AddType(module, &CallSamplerType);
}

}  // namespace backline
