// Operation: the public callable of a hot operation. A call whose signature was seen before runs its Plan right here;
// a new one asks the engine (Python) for a Plan first.
#include "boundary.hpp"
#include "call_arguments.hpp"
#include "call_sampler.hpp"
#include "scope_state.hpp"
#include "memo.hpp"
#include "plan.hpp"
#include "plan_template.hpp"
#include "processor_share.hpp"
#include "sampled_plan.hpp"

#include <structmember.h>

#include <chrono>

namespace backline {
namespace {

struct Operation {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict;      // __doc__, __signature__, __module__ and what Python tools hang on functions
    PyObject *name;
    PyObject *parameters;  // tuple of names, in the order of the signature
    PyObject *resolve;   // resolve(args, kwargs) -> Plan, for arguments that can be memoised; None leaves such calls to `general`
    PyObject *general;   // general(*args, **kwargs) -> result, for all others: converts, or refuses with the reason
    PyObject *templated;  // templated(args, kwargs) -> PlanTemplate, for calls whose sizes keep changing; or None
    PyObject *scalars;    // tuple of the name of a parameter whose numbers plans are given by keyword and the key leaves out; or None
    PyObject *draw;       // draw() -> int, for calls that give no such number to a plan that takes one; or None
    Py_ssize_t scalar_at; // the position of that parameter, -1 for none
    PyObject *weakrefs;
    PyObject *bound;     // nullptr, or a tuple of arrays that every plan gets before those of the call
    std::unique_ptr<OwnMemo> own;  // nullptr, or its plans: those of an Operation with bound arrays live and die with it
    int foreign;         // whether it takes arrays that are not NumPy's
};

constexpr Py_ssize_t kMaxBound = 8;

// The plan that a thread ran last. The thread's own dictionary owns it, so it goes when the thread ends.
struct LastPlan {
    PyObject_HEAD
    PyObject *plan;
};

thread_local LastPlan *last = nullptr;

void last_plan_dealloc(PyObject *raw) {
    LastPlan *self = reinterpret_cast<LastPlan *>(raw);
    if (self == last) last = nullptr;  // the thread may go on under another state
    if (!ending()) Py_CLEAR(self->plan);  // what a plan holds may need Python to be let go
    PyObject_Free(raw);
}

PyTypeObject LastPlanType = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool make_last() {
    PyObject *mine = PyThreadState_GetDict();
    Ref made(mine ? _PyObject_New(&LastPlanType) : nullptr);
    if (!made) return false;
    reinterpret_cast<LastPlan *>(made.get())->plan = nullptr;
    if (PyDict_SetItemString(mine, "backline._core.last_plan", made.get()) < 0) return false;
    last = reinterpret_cast<LastPlan *>(made.get());
    return true;
}

bool remember(PyObject *plan) {
    if (!last && !make_last()) {
        if (!PyErr_Occurred()) PyErr_NoMemory();
        return false;
    }
    if (plan != last->plan) Py_XSETREF(last->plan, Py_NewRef(plan));
    return true;
}

// Whether a plan takes the run-time scalar of its operation. Compiled ones take arrays alone.
bool takes_scalar(const Operation *self, PyObject *plan) {
    if (self->scalar_at < 0 || plan == Py_None || is_prepared(plan)) return false;
    Ref names(PyObject_GetAttrString(plan, "scalars"));
    if (!names) PyErr_Clear();
    return names && PyObject_IsTrue(names.get()) == 1;
}

PyObject *run_on_arrays(PyObject *plan, const Signature &s, PyObject *scalars) {
    if (!scalars) return PyObject_Vectorcall(plan, s.arrays, size_t(s.array_count), nullptr);
    PyObject *all[Signature::kArrays + 1];
    std::copy(s.arrays, s.arrays + s.array_count, all);
    all[s.array_count] = s.scalar;
    return PyObject_Vectorcall(plan, all, size_t(s.array_count), scalars);
}

// The plan of arrays that are not NumPy's is given them alone, in the order of the call. One that says it failed is not used
// again: the Memo is emptied, and the next call asks for another.
PyObject *run_foreign(PyObject *plan, const Signature &s, PyObject *scalars) {
    PyObject *result = run_on_arrays(plan, s, scalars);
    if (result) return result;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Ref failed(PyObject_GetAttrString(plan, "failed"));
    if (failed && PyObject_IsTrue(failed.get()) == 1) memo_empty();
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    return nullptr;
}

// Whoever calls this owns the plan: the Memo may evict it, and a nested call be remembered, while it runs.
PyObject *run_plan(const Operation *self, PyObject *plan, const Signature &s, PyObject *const *args, size_t nargs, PyObject *kwnames) {
    if (!remember(plan)) return nullptr;
    if (is_prepared(plan) && !s.foreign) return run_prepared(reinterpret_cast<PreparedCall *>(plan), s.arrays, s.array_count);
    [[maybe_unused]] PythonCall call;
    PyObject *scalars = s.scalar && takes_scalar(self, plan) ? self->scalars : nullptr, *bound = self->bound;
    if (s.foreign) return run_foreign(plan, s, scalars);
    if (scalars) return run_on_arrays(plan, s, scalars);
    if (!bound) return PyObject_Vectorcall(plan, args, nargs, kwnames);
    Py_ssize_t n = PyTuple_GET_SIZE(bound), given = PyVectorcall_NARGS(nargs), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    std::vector<PyObject *> all;
    for (Py_ssize_t i = 0; i < n; ++i) all.push_back(PyTuple_GET_ITEM(bound, i));
    all.insert(all.end(), args, args + given + named);
    return PyObject_Vectorcall(plan, all.data(), size_t(n + given), kwnames);
}

// The threads that a plan may use. One written in Python does not tell, and runs where it likes what it is made of.
int threads_of(PyObject *plan, const Signature &s) {
    if (s.foreign) return 1;
    return is_prepared(plan) ? reinterpret_cast<PreparedCall *>(plan)->most_threads : kMostThreads;
}

// The arguments of a traced call, and what an Operation is bound to beside them.
struct Given {
    PyObject *const *args;
    Py_ssize_t count;
    PyObject *bound;  // a tuple, or nullptr
};

PyObject *as_tuple(const Given &given) {
    const Py_ssize_t before = given.bound ? PyTuple_GET_SIZE(given.bound) : 0;
    Ref all(checked(PyTuple_New(before + given.count)));
    for (Py_ssize_t i = 0; i < before; ++i) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(PyTuple_GET_ITEM(given.bound, i)));
    for (Py_ssize_t i = 0; i < given.count; ++i) PyTuple_SET_ITEM(all.get(), before + i, Py_NewRef(given.args[i]));
    return all.release();
}

// Tells those who trace what ran. False with an error set if that failed. The process-wide tracer is also given the arguments
// and the result if it has an attribute `sees_arrays`.
bool tell(PyObject *tracer, PyObject *name, PyObject *plan, long long spent, const Given &given, PyObject *result) {
    Ref process_wide(Py_XNewRef(process_wide_tracer().get()));
    if (process_wide && is_call_sampler(process_wide.get())) process_wide.reset();  // it had its turn before the call
    if (tracer != process_wide.get()) {
        Ref done(PyObject_CallFunction(tracer, "OOL", name, plan, spent));
        if (!done || !process_wide) return bool(done);
    }
    if (!PyObject_HasAttrString(process_wide.get(), "sees_arrays"))
        return bool(Ref(PyObject_CallFunction(process_wide.get(), "OOL", name, plan, spent)));
    Ref arguments(as_tuple(given));
    return bool(Ref(PyObject_CallFunction(process_wide.get(), "OOLOO", name, plan, spent, arguments.get(), result)));
}

// Runs a plan for those who trace: `run` returns a new reference.
template <class Run>
PyObject *traced(PyObject *tracer, PyObject *name, PyObject *plan, const Given &given, const Run &run) {
    using Clock = std::chrono::steady_clock;
    Ref hold_tracer(Py_NewRef(tracer));
    auto start = Clock::now();
    Ref result(run());
    auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    if (!result || !tell(tracer, name, plan, (long long)spent, given, result.get())) return nullptr;
    return result.release();
}

PyObject *operation_call(PyObject *raw, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Operation *self = reinterpret_cast<Operation *>(raw);
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    Held snapshot, tracer;
    if (!current_scope_state(snapshot, tracer)) return nullptr;
    Signature s;
    s.takes_foreign = self->foreign;
    s.words[s.count++] = reinterpret_cast<int64_t>(self);
    s.words[s.count++] = reinterpret_cast<int64_t>(snapshot.get());
    if (self->bound)  // always the same: no words of the key
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->bound); ++i) s.arrays[s.array_count++] = PyTuple_GET_ITEM(self->bound, i);
    auto put = [&](Py_ssize_t position, PyObject *value) {
        if (position == self->scalar_at) s.put_scalar(value);
        else s.put_argument(value);
    };
    for (Py_ssize_t i = 0; i < nargs && s.memoizable; ++i) put(i, args[i]);
    for (Py_ssize_t i = 0; i < named && s.memoizable; ++i) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        Py_ssize_t position = 0, known = PyTuple_GET_SIZE(self->parameters);
        while (position < known && PyTuple_GET_ITEM(self->parameters, position) != name) ++position;
        if (position == known) s.memoizable = false;  // a name we do not have, or one that is not interned
        s.put(-1 - position);
        put(position, args[nargs + i]);
    }
    if (!s.memoizable && PyErr_Occurred()) return nullptr;
    if (!s.memoizable) return PyObject_Vectorcall(self->general, args, nargsf, kwnames);
    if (s.foreign) {  // telling what they are may have run Python code, and that have written switches
        if (!current_scope_state(snapshot, tracer)) return nullptr;
        s.words[1] = reinterpret_cast<int64_t>(snapshot.get());
    }
    uint64_t hash = s.hash();
    auto run = [&](PyObject *plan, bool once_only = false) {
        if (plan == Py_None) return PyObject_Vectorcall(self->general, args, nargsf, kwnames);
        Ref hold_tracer(Py_XNewRef(tracer.get()));  // looking at the load, and the sampler between two runs, run Python code
        const bool sampled = is_sampled(plan);
        Ref inner(Py_NewRef(sampled ? as<SampledPlan>(plan)->plan.get().get() : plan));
        // Nobody else would draw the same number again: such a call is run once, as it is.
        Ref drawn(!s.scalar && self->draw != Py_None && takes_scalar(self, inner.get()) ? checked(PyObject_CallNoArgs(self->draw)) : nullptr);
        if (drawn) s.scalar = drawn.get(), once_only = true;
        if (hold_tracer)  // a plan of one use cannot be run again
            if (Ref sampler = due_sampler(hold_tracer, !once_only)) {
                Ref result(call_by_sampler(sampler.get(), raw, inner.get(), args, nargsf, kwnames));
                if (result && !remember(inner.get())) return static_cast<PyObject *>(nullptr);  // and no plan of a comparison
                return result.release();
            }
        auto once = [&](PyObject *one, Stopwatch *watch) {
            auto bare = [&] { return run_plan(self, one, s, args, nargsf, kwnames); };
            auto timed = [&] { return watch ? watch->time(bare) : bare(); };
            return hold_tracer ? traced(hold_tracer.get(), self->name, one, {args, nargs + named, self->bound}, timed) : timed();
        };
        // A plan of one use is made for this call: another one would warn again.
        if (const int threads = once_only ? 1 : threads_of(inner.get(), s); threads > 1) {
            const int shared = shared_threads(threads);
            if (shared < 0) return static_cast<PyObject *>(nullptr);
            Ref result(shared < threads ? call_on_fewer(raw, inner.get(), shared, args, nargsf, kwnames) : nullptr);
            if (shared < threads && result.get() != Py_NotImplemented) return result.release();
        }
        return sampled ? run_sampled(as<SampledPlan>(plan), once) : once(plan, nullptr);
    };
    Ref known = self->own ? self->own->find(s, hash) : memo_find(s, hash);
    const bool outgrown = known && is_prepared(known.get()) && as<PreparedCall>(known.get())->outgrown;
    if (known && !outgrown) return run(known.get());
    Ref hold_snapshot(Py_NewRef(snapshot.get())), hold_tracer(Py_XNewRef(tracer.get()));
    const bool sized = self->templated != Py_None && !outgrown && !self->own && !s.foreign && s.array_count;
    const uint64_t age = memo_age();
    FoundTemplate found;
    if (sized) found = template_find(s);
    while (found.near) {  // each is asked once for sizes at these levels
        template_note(found.near.get(), s, template_same(found.near.get(), s));
        found = template_find(s);
    }
    if (found.plans)
        if (Ref plan = template_plan(found.made.get(), s)) {
            memo_put(s, hash, plan.get(), raw, hold_snapshot.get(), age);
            return run(plan.get());
        }
    const CallArguments packed(args, nargsf, kwnames);
    if (found.due) {
        Ref made(PyObject_CallFunctionObjArgs(self->templated, packed.positional.get(), packed.keywords.get(), nullptr));
        if (!made) return nullptr;
        Held now, ignored;
        if (!current_scope_state(now, ignored)) return nullptr;
        if (now == hold_snapshot && Py_TYPE(made.get()) == &PlanTemplateType) {
            template_put(s, made.get(), raw, now.get(), age);
            if (Ref plan = template_plan(made.get(), s)) {
                memo_put(s, hash, plan.get(), raw, now.get(), age);
                return run(plan.get());
            }
        }
    } else if (sized && !found.known) {
        template_put(s, nullptr, raw, hold_snapshot.get(), age);
    }
    Ref made(PyObject_CallFunctionObjArgs(self->resolve, packed.positional.get(), packed.keywords.get(), nullptr));
    if (!made) return nullptr;
    // A plan that must not be kept (a measurement is due, a limited use) says so by being wrapped in a tuple.
    const bool once_only = PyTuple_CheckExact(made.get()) && PyTuple_GET_SIZE(made.get()) == 1;
    if (once_only) {
        made.reset(Py_NewRef(PyTuple_GET_ITEM(made.get(), 0)));
    } else {
        // Another thread may have written a switch while the engine chose: then the plan belongs to another Snapshot. If the
        // Memo was emptied meanwhile, a plan of other arrays may be one that was to go.
        Held now, ignored;
        if (!current_scope_state(now, ignored)) return nullptr;
        if (now == hold_snapshot) {
            if (self->own) self->own->put(s, hash, made.get(), now.get());
            else memo_put(s, hash, made.get(), raw, now.get(), s.foreign ? age : memo_age());
        }
    }
    return run(made.get(), once_only);
}

PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"name", "parameters", "resolve", "general", "bound", "most", "foreign", "templated", "scalar", "draw", nullptr};
    PyObject *name, *parameters, *resolve, *general, *bound = nullptr, *templated = Py_None, *scalar = Py_None, *draw = Py_None;
    Py_ssize_t most = 8;
    int foreign = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO!OO|O!npOOO", const_cast<char **>(names), &name, &PyTuple_Type, &parameters,
                                     &resolve, &general, &PyTuple_Type, &bound, &most, &foreign, &templated, &scalar, &draw))
        return nullptr;
    if (most < 1 || (bound && PyTuple_GET_SIZE(bound) > kMaxBound))
        throw python_error(PyExc_ValueError, "an Operation keeps one plan or more, and has few bound arrays");
    for (Py_ssize_t i = 0; bound && i < PyTuple_GET_SIZE(bound); ++i)
        if (!PyArray_CheckExact(PyTuple_GET_ITEM(bound, i))) throw python_error(PyExc_TypeError, "what is bound to an Operation are arrays");
#if PY_VERSION_HEX < 0x030C0000
    // Until Python 3.12 a class written in Python does not inherit this, and its instances would be called by way of a tuple.
    if (type->tp_call == PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
#endif
    Ref made(checked(type->tp_alloc(type, 0)));
    Operation *self = as<Operation>(made.get());
    new (&self->own) std::unique_ptr<OwnMemo>();
    self->vectorcall = entry<operation_call>;
    self->foreign = foreign;
    self->name = Py_NewRef(name);
    self->resolve = Py_NewRef(resolve);
    self->general = Py_NewRef(general);
    self->templated = Py_NewRef(templated);
    self->draw = Py_NewRef(draw);
    self->scalars = scalar == Py_None ? Py_NewRef(Py_None) : checked(PyTuple_Pack(1, scalar));
    self->scalar_at = -1;
    self->bound = Py_XNewRef(bound);
    if (bound) self->own = std::make_unique<OwnMemo>(size_t(most));
    self->dict = checked(PyDict_New());
    self->parameters = checked(PyTuple_New(PyTuple_GET_SIZE(parameters)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameters); ++i) {
        PyObject *item = Py_NewRef(PyTuple_GET_ITEM(parameters, i));
        PyUnicode_InternInPlace(&item);
        PyTuple_SET_ITEM(self->parameters, i, item);
        if (PyUnicode_Check(scalar) && !PyUnicode_Compare(item, scalar)) self->scalar_at = i;
    }
    if (scalar != Py_None && self->scalar_at < 0) throw python_error(PyExc_ValueError, "the run-time scalar of an Operation is one of its parameters");
    return made.release();
}

using OperationReferences = References<Operation, &Operation::dict, &Operation::parameters, &Operation::resolve, &Operation::general,
                                       &Operation::bound, &Operation::name, &Operation::templated,
                                       &Operation::scalars, &Operation::draw>;

int operation_traverse(PyObject *raw, visitproc visit, void *arg) {
    Operation *self = as<Operation>(raw);
    Py_VISIT(Py_TYPE(raw));
    if (int result = OperationReferences::traverse(raw, visit, arg)) return result;
    return self->own ? self->own->traverse(visit, arg) : 0;
}

int operation_clear(PyObject *raw) {
    Operation *self = reinterpret_cast<Operation *>(raw);
    Py_CLEAR(self->dict);
    if (self->own) self->own->clear();
    return 0;
}

void operation_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    Operation *self = reinterpret_cast<Operation *>(raw);
    if (self->weakrefs) PyObject_ClearWeakRefs(raw);
    self->own.~unique_ptr();  // its plans go before what they are bound to
    OperationReferences::clear(raw);
    PyTypeObject *type = Py_TYPE(raw);
    type->tp_free(raw);
    Py_DECREF(type);
}

PyObject *operation_repr(PyObject *raw) {
    return PyUnicode_FromFormat("<backline operation %U>", reinterpret_cast<Operation *>(raw)->name);
}

// Pickled by qualified name, like a function.
PyObject *operation_reduce(PyObject *self) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject *operation_plans(Operation *self) { return self->own ? self->own->plans() : PyList_New(0); }

PyMethodDef operation_methods[] = {method<operation_plans>("own_plans", "The plans that live with its bound arrays."),
                                   method<operation_reduce>("__reduce__", nullptr), {}};

PyMemberDef operation_members[] = {
    {"__name__", T_OBJECT_EX, offsetof(Operation, name), READONLY, nullptr},
    {"parameters", T_OBJECT_EX, offsetof(Operation, parameters), READONLY, "parameter names in order"},
    {"resolve", T_OBJECT_EX, offsetof(Operation, resolve), READONLY, "resolve(args, kwargs) -> Plan"},
    {"general", T_OBJECT_EX, offsetof(Operation, general), READONLY, "what runs when arguments cannot be memoised"},
    {"__dictoffset__", T_PYSSIZET, offsetof(Operation, dict), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operation, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Operation, weakrefs), READONLY, nullptr},
    {}};

// __doc__ of a static type's instance would be the type's: read it from the instance.
PyObject *operation_doc(PyObject *self) {
    Ref dict(PyObject_GenericGetDict(self, nullptr));
    Ref doc(dict ? PyMapping_GetItemString(dict.get(), "__doc__") : nullptr);
    if (doc || !PyErr_ExceptionMatches(PyExc_KeyError)) return doc.release();
    PyErr_Clear();
    Py_RETURN_NONE;
}
void operation_set_doc(PyObject *self, PyObject *value) {
    Ref dict(checked(PyObject_GenericGetDict(self, nullptr)));
    if (PyDict_SetItemString(dict.get(), "__doc__", value ? value : Py_None) < 0) throw PythonError();
}

PyGetSetDef operation_getset[] = {attribute<operation_doc, operation_set_doc>("__doc__", nullptr),
                                  {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                                  {}};

// An Operation stored on a class does not bind: it is a function of arrays, not a method.
PyType_Slot operation_slots[] = {{Py_tp_new, reinterpret_cast<void *>(entry<operation_new>)},
                                 {Py_tp_dealloc, reinterpret_cast<void *>(operation_dealloc)},
                                 {Py_tp_traverse, reinterpret_cast<void *>(operation_traverse)},
                                 {Py_tp_clear, reinterpret_cast<void *>(operation_clear)},
                                 {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
                                 {Py_tp_repr, reinterpret_cast<void *>(entry<operation_repr>)},
                                 {Py_tp_methods, operation_methods},
                                 {Py_tp_members, operation_members},
                                 {Py_tp_getset, operation_getset},
                                 {0, nullptr}};

PyType_Spec operation_spec = {"backline._core.Operation", sizeof(Operation), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                              operation_slots};

PyObject *get_last_plan() { return Py_NewRef(last && last->plan ? last->plan : Py_None); }

// A call that an Operation did not make itself: seen by explain and trace like any other.
PyObject *run_named(PyObject *, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    if (n < 2) throw python_error(PyExc_TypeError, "run takes a name, a plan and its arrays");
    Held snapshot, tracer;
    if (!current_scope_state(snapshot, tracer)) return nullptr;
    Ref hold_tracer(Py_XNewRef(tracer.get())), plan(Py_NewRef(args[1]));
    if (hold_tracer) due_sampler(hold_tracer, false);
    if (!remember(plan.get())) return nullptr;
    auto run = [&] { return PyObject_Vectorcall(plan.get(), args + 2, size_t(n - 2), kwnames); };
    return hold_tracer ? traced(hold_tracer.get(), args[0], plan.get(), {args + 2, n - 2, nullptr}, run) : run();
}

PyMethodDef methods[] = {{"run", reinterpret_cast<PyCFunction>(entry<run_named>), METH_FASTCALL | METH_KEYWORDS,
                          "run(name, plan, *arrays, **scalars): the plan's result; explain and trace see the call."},
                         function<get_last_plan>("last_plan", "The Plan this thread ran last, or None."),
                         {}};

}  // namespace

int add_operation_types(PyObject *module) {
    describe<LastPlan>(LastPlanType, "backline._core.LastPlan", nullptr, nullptr);
    LastPlanType.tp_dealloc = last_plan_dealloc;
    Ref type(PyType_FromSpec(&operation_spec));
    if (!type || PyType_Ready(&LastPlanType) < 0 || PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddObjectRef(module, "Operation", type.get());
}

}  // namespace backline
