#include "frame.hpp"

#include <structmember.h>

namespace backline {
namespace {

PyTypeObject FrameType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyObject *scope_variable = nullptr;  // ContextVar of Frame
PyObject *base_snapshot = nullptr;   // nullptr until the first call needs the switches
PyObject *remerge = nullptr;         // switches' current(): makes the base, or merges a Frame over a newer base
PyObject *process_tracer = nullptr;

PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"layers", "base", "snapshot", "tracer", nullptr};
    PyObject *layers, *base, *snapshot, *tracer = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|O", const_cast<char **>(names), &layers, &base, &snapshot, &tracer))
        return nullptr;
    Frame *self = reinterpret_cast<Frame *>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->layers = Py_NewRef(layers);
    self->base = Py_NewRef(base);
    self->snapshot = Py_NewRef(snapshot);
    self->tracer = Py_NewRef(tracer);
    return reinterpret_cast<PyObject *>(self);
}

int frame_traverse(PyObject *raw, visitproc visit, void *arg) {
    Frame *self = reinterpret_cast<Frame *>(raw);
    Py_VISIT(self->layers);
    Py_VISIT(self->base);
    Py_VISIT(self->snapshot);
    Py_VISIT(self->tracer);
    return 0;
}

int frame_clear(PyObject *raw) {
    Frame *self = reinterpret_cast<Frame *>(raw);
    Py_CLEAR(self->layers);
    Py_CLEAR(self->base);
    Py_CLEAR(self->snapshot);
    Py_CLEAR(self->tracer);
    return 0;
}

void frame_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    frame_clear(raw);
    Py_TYPE(raw)->tp_free(raw);
}

PyMemberDef frame_members[] = {
    {"layers", T_OBJECT_EX, offsetof(Frame, layers), READONLY, "scopes that are open here, innermost last"},
    {"base", T_OBJECT_EX, offsetof(Frame, base), READONLY, "base Snapshot this was merged over"},
    {"snapshot", T_OBJECT_EX, offsetof(Frame, snapshot), READONLY, "Snapshot that holds here"},
    {"tracer", T_OBJECT_EX, offsetof(Frame, tracer), READONLY, "called with every Event in this context, or None"},
    {nullptr, 0, 0, 0, nullptr}};

void replace(PyObject **slot, PyObject *value) {
    PyObject *old = *slot;
    *slot = value == Py_None ? nullptr : Py_NewRef(value);
    Py_XDECREF(old);
}

PyObject *bind_scope(PyObject *, PyObject *args) {
    PyObject *variable, *current;
    if (!PyArg_ParseTuple(args, "O!O", &PyContextVar_Type, &variable, &current)) return nullptr;
    replace(&scope_variable, variable);
    replace(&remerge, current);
    Py_RETURN_NONE;
}

PyObject *set_base(PyObject *, PyObject *snapshot) {
    replace(&base_snapshot, snapshot);
    Py_RETURN_NONE;
}

PyObject *set_tracer(PyObject *, PyObject *tracer) {
    replace(&process_tracer, tracer);
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"bind_scope", bind_scope, METH_VARARGS, "bind_scope(contextvar, current): where calls find their Frame, and who merges it anew."},
    {"set_base", set_base, METH_O, "Make this the base Snapshot (None: not made yet)."},
    {"set_tracer", set_tracer, METH_O, "Call this with every Event of the process (None: nobody)."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject *process_wide_tracer() { return process_tracer; }

bool current_frame(PyObject **snapshot, PyObject **tracer) {
    PyObject *found = nullptr;
    if (scope_variable && PyContextVar_Get(scope_variable, nullptr, &found) < 0) return false;
    *tracer = process_tracer;
    if (!found && base_snapshot) {
        *snapshot = base_snapshot;
        return true;
    }
    if (found) {
        Frame *frame = reinterpret_cast<Frame *>(found);
        bool ours = Py_TYPE(found) == &FrameType;
        bool fresh = ours && frame->base == base_snapshot && base_snapshot;
        if (fresh) {
            *snapshot = frame->snapshot;
            if (frame->tracer != Py_None) *tracer = frame->tracer;
        }
        Py_DECREF(found);  // the context keeps it alive for the length of this call
        if (fresh) return true;
    }
    if (!remerge) {
        PyErr_SetString(PyExc_RuntimeError, "backline._core is not bound to the switches yet: import backline");
        return false;
    }
    Ref merged(PyObject_CallNoArgs(remerge));
    if (!merged) return false;
    found = nullptr;
    if (PyContextVar_Get(scope_variable, nullptr, &found) < 0) return false;
    if (found && Py_TYPE(found) == &FrameType) {
        Frame *frame = reinterpret_cast<Frame *>(found);
        *snapshot = frame->snapshot;
        if (frame->tracer != Py_None) *tracer = frame->tracer;
        Py_DECREF(found);
        return true;
    }
    Py_XDECREF(found);
    if (!base_snapshot) {
        PyErr_SetString(PyExc_RuntimeError, "the switches made no base Snapshot");
        return false;
    }
    *snapshot = base_snapshot;
    return true;
}

int add_frame_type(PyObject *module) {
    FrameType.tp_name = "backline._core.Frame";
    FrameType.tp_basicsize = sizeof(Frame);
    FrameType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    FrameType.tp_doc = "Frame(layers, base, snapshot, tracer=None): which switches hold in one context.";
    FrameType.tp_new = frame_new;
    FrameType.tp_dealloc = frame_dealloc;
    FrameType.tp_traverse = frame_traverse;
    FrameType.tp_clear = frame_clear;
    FrameType.tp_members = frame_members;
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddType(module, &FrameType);
}

}  // namespace backline
