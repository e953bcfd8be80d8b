#include "scope_state.hpp"

#include "boundary.hpp"

#include <structmember.h>

namespace backline {
namespace {

PyTypeObject ScopeStateType = {PyVarObject_HEAD_INIT(nullptr, 0)};
ObjectSlot scope_variable;  // ContextVar of ScopeState
ObjectSlot base_snapshot;   // empty until the first call needs the switches
ObjectSlot rebuild;         // switches' current(): makes the base, or merges a ScopeState over a newer base
ObjectSlot process_tracer;

PyObject *scope_state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"layers", "base", "snapshot", "tracer", nullptr};
    PyObject *layers, *base, *snapshot, *tracer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O", const_cast<char **>(names), &layers, &base, &snapshot, &tracer))
        return nullptr;
    ScopeState *self = reinterpret_cast<ScopeState *>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->layers = Py_NewRef(layers);
    self->base = Py_NewRef(base);
    self->snapshot = Py_NewRef(snapshot);
    self->tracer = Py_NewRef(tracer);
    return reinterpret_cast<PyObject *>(self);
}

int scope_state_traverse(PyObject *raw, visitproc visit, void *arg) {
    ScopeState *self = reinterpret_cast<ScopeState *>(raw);
    Py_VISIT(self->layers);
    Py_VISIT(self->base);
    Py_VISIT(self->snapshot);
    Py_VISIT(self->tracer);
    return 0;
}

int scope_state_clear(PyObject *raw) {
    ScopeState *self = reinterpret_cast<ScopeState *>(raw);
    Py_CLEAR(self->layers);
    Py_CLEAR(self->base);
    Py_CLEAR(self->snapshot);
    Py_CLEAR(self->tracer);
    return 0;
}

void scope_state_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    scope_state_clear(raw);
    Py_TYPE(raw)->tp_free(raw);
}

PyMemberDef scope_state_members[] = {
    {"layers", T_OBJECT_EX, offsetof(ScopeState, layers), READONLY, "scopes that are open here, innermost last"},
    {"base", T_OBJECT_EX, offsetof(ScopeState, base), READONLY, "base Snapshot this was merged over"},
    {"snapshot", T_OBJECT_EX, offsetof(ScopeState, snapshot), READONLY, "Snapshot that holds here"},
    {"tracer", T_OBJECT_EX, offsetof(ScopeState, tracer), READONLY, "called with every Event in this context, or None"},
    {nullptr, 0, 0, 0, nullptr}};

PyObject *bind_scope(PyObject *, PyObject *args) {
    PyObject *variable, *current;
    if (!PyArg_ParseTuple(args, "O!O", &PyContextVar_Type, &variable, &current)) return nullptr;
    scope_variable.set(variable);  // first: who finds the other one needs this
    rebuild.set(current);
    Py_RETURN_NONE;
}

PyObject *set_base(PyObject *, PyObject *snapshot) {
    base_snapshot.set(snapshot == Py_None ? nullptr : snapshot);
    Py_RETURN_NONE;
}

PyObject *set_tracer(PyObject *, PyObject *tracer) {
    process_tracer.set(tracer == Py_None ? nullptr : tracer);
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"bind_scope", entry<bind_scope>, METH_VARARGS, "bind_scope(contextvar, current): where calls find their ScopeState, and who merges it anew."},
    {"set_base", entry<set_base>, METH_O, "Make this the base Snapshot (None: not made yet)."},
    {"set_tracer", entry<set_tracer>, METH_O, "Call this with every Event of the process (None: nobody)."},
    {nullptr, nullptr, 0, nullptr}};

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
    ScopeStateType.tp_name = "backline._core.ScopeState";
    ScopeStateType.tp_basicsize = sizeof(ScopeState);
    ScopeStateType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    ScopeStateType.tp_doc = "ScopeState(layers, base, snapshot, tracer=None): which switches hold in one context.";
    ScopeStateType.tp_new = entry<scope_state_new>;
    ScopeStateType.tp_dealloc = scope_state_dealloc;
    ScopeStateType.tp_traverse = scope_state_traverse;
    ScopeStateType.tp_clear = scope_state_clear;
    ScopeStateType.tp_members = scope_state_members;
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddType(module, &ScopeStateType);
}

}  // namespace backline
