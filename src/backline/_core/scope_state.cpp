#include "scope_state.hpp"

#include "boundary.hpp"

#include <structmember.h>

namespace backline {
namespace {

PyTypeObject ScopeStateType = {PyVarObject_HEAD_INIT(nullptr, 0)};
using ScopeReferences =
    References<ScopeState, &ScopeState::layers, &ScopeState::base, &ScopeState::snapshot, &ScopeState::tracer>;
ObjectSlot scope_variable;  // ContextVar of ScopeState
ObjectSlot base_snapshot;   // empty until the first call needs the switches
ObjectSlot rebuild;         // switches' current(): makes the base, or merges a ScopeState over a newer base
ObjectSlot process_tracer;

PyObject *scope_state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"layers", "base", "snapshot", "tracer", nullptr};
    PyObject *layers, *base, *snapshot, *tracer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O", const_cast<char **>(names), &layers, &base, &snapshot, &tracer))
        return nullptr;
    ScopeState *self = as<ScopeState>(checked(type->tp_alloc(type, 0)));
    self->layers = Py_NewRef(layers);
    self->base = Py_NewRef(base);
    self->snapshot = Py_NewRef(snapshot);
    self->tracer = Py_NewRef(tracer);
    return reinterpret_cast<PyObject *>(self);
}

PyMemberDef scope_state_members[] = {
    {"layers", T_OBJECT_EX, offsetof(ScopeState, layers), READONLY, "scopes that are open here, innermost last"},
    {"base", T_OBJECT_EX, offsetof(ScopeState, base), READONLY, "base Snapshot this was merged over"},
    {"snapshot", T_OBJECT_EX, offsetof(ScopeState, snapshot), READONLY, "Snapshot that holds here"},
    {"tracer", T_OBJECT_EX, offsetof(ScopeState, tracer), READONLY, "called with every Event in this context, or None"},
    {}};

void bind_scope(PyObject *variable, PyObject *current) {
    if (!PyContextVar_CheckExact(variable)) throw python_error(PyExc_TypeError, "bind_scope takes a ContextVar first");
    scope_variable.set(variable);  // first: who finds the other one needs this
    rebuild.set(current);
}

void set_base(PyObject *snapshot) { base_snapshot.set(snapshot == Py_None ? nullptr : snapshot); }

void set_tracer(PyObject *tracer) { process_tracer.set(tracer == Py_None ? nullptr : tracer); }

PyMethodDef methods[] = {
    function<bind_scope>("bind_scope", "bind_scope(contextvar, current): where calls find their ScopeState, and who merges it anew."),
    function<set_base>("set_base", "Make this the base Snapshot (None: not made yet)."),
    function<set_tracer>("set_tracer", "Call this with every Event of the process (None: nobody); where it has an attribute `sees_arrays`, "
                                       "with the arguments and the result, too."),
    {}};

// What the ScopeState of this context holds. The context keeps it alive for the length of a call.
void read(const ScopeState *state, Held &snapshot, Held &tracer) {
    snapshot = hold(state->snapshot);
    if (state->tracer != Py_None) tracer = hold(state->tracer);
}

}  // namespace

Held process_wide_tracer() { return process_tracer.get(); }

bool current_scope_state(Held &snapshot, Held &tracer) {
    Held variable = scope_variable.get(), base = base_snapshot.get();
    PyObject *value = nullptr;
    if (variable && PyContextVar_Get(variable.get(), nullptr, &value) < 0) return false;
    tracer = process_tracer.get();
    if (!value && base) {
        snapshot = std::move(base);
        return true;
    }
    if (value) {
        const ScopeState *state = reinterpret_cast<ScopeState *>(value);
        bool fresh = Py_TYPE(value) == &ScopeStateType && base && state->base == base.get();
        if (fresh) read(state, snapshot, tracer);
        Py_DECREF(value);
        if (fresh) return true;
    }
    Ref current(Py_XNewRef(rebuild.get().get()));
    if (!current) {
        PyErr_SetString(PyExc_RuntimeError, "backline._core is not bound to the switches yet: import backline");
        return false;
    }
    Ref merged(PyObject_CallNoArgs(current.get()));
    if (!merged) return false;
    value = nullptr;
    variable = scope_variable.get();
    if (PyContextVar_Get(variable.get(), nullptr, &value) < 0) return false;
    if (value && Py_TYPE(value) == &ScopeStateType) {
        read(reinterpret_cast<ScopeState *>(value), snapshot, tracer);
        Py_DECREF(value);
        return true;
    }
    Py_XDECREF(value);
    snapshot = base_snapshot.get();
    if (snapshot) return true;
    PyErr_SetString(PyExc_RuntimeError, "the switches made no base Snapshot");
    return false;
}

int add_scope_state_type(PyObject *module) {
    describe<ScopeState>(ScopeStateType, "backline._core.ScopeState", entry<scope_state_new>,
                         "ScopeState(layers, base, snapshot, tracer=None): which switches hold in one context.", Py_TPFLAGS_HAVE_GC);
    ScopeStateType.tp_dealloc = ScopeReferences::dealloc;
    ScopeStateType.tp_traverse = ScopeReferences::traverse;
    ScopeStateType.tp_clear = ScopeReferences::clear;
    ScopeStateType.tp_members = scope_state_members;
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddType(module, &ScopeStateType);
}

}  // namespace backline
