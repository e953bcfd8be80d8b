#include "door.hpp"

#include "boundary.hpp"

#include <pthread.h>

#include <chrono>
#include <thread>

namespace backline {
namespace {

// Who is inside one door waits at no other: whoever closed that one may be waiting for this thread to come out.
thread_local int entered = 0;

void nap() {
    ReleaseGil released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void renew(Door *self) {
    if (self->forks_seen == forks) return;
    self->forks_seen = forks;
    self->inside = 0;
    if (self->owner != PyThread_get_thread_ident()) self->owner = 0, self->depth = 0;
}

Door *door(PyObject *raw) {
    renew(reinterpret_cast<Door *>(raw));
    return reinterpret_cast<Door *>(raw);
}

PyObject *door_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "Door() takes no arguments");
        return nullptr;
    }
    PyObject *made = type->tp_alloc(type, 0);
    if (made) reinterpret_cast<Door *>(made)->forks_seen = forks;
    return made;
}

PyObject *door_close(PyObject *raw, PyObject *) {
    Door *self = door(raw);
    unsigned long me = PyThread_get_thread_ident();
    if (self->owner != me) {
        while (self->owner) nap();
        self->owner = me;
        while (self->inside.load()) nap();
    }
    ++self->depth;
    Py_RETURN_NONE;
}

PyObject *door_open(PyObject *raw, PyObject *) {
    Door *self = door(raw);
    if (self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "this thread did not close the door");
        return nullptr;
    }
    if (--self->depth == 0) self->owner = 0;
    Py_RETURN_NONE;
}

PyObject *door_enter(PyObject *raw, PyObject *) {
    Door *self = door(raw);
    self->pass();
    ++self->inside;
    ++entered;
    Py_RETURN_NONE;
}

PyObject *door_leave(PyObject *raw, PyObject *) {
    Door *self = door(raw);
    if (self->inside > 0) --self->inside;  // a child that was forked in between has forgotten it
    if (entered > 0) --entered;
    Py_RETURN_NONE;
}

PyMethodDef door_methods[] = {
    {"close", door_close, METH_NOARGS,
     "Wait for the calls inside and keep those of other threads out. May be nested; not between enter() and leave()."},
    {"open", door_open, METH_NOARGS, "End what close() began."},
    {"enter", door_enter, METH_NOARGS, "Begin calls that are not prepared ones; waits while another thread has closed the door."},
    {"leave", door_leave, METH_NOARGS, "End what enter() began, on the same thread."},
    {nullptr, nullptr, 0, nullptr}};

PyObject *door_inside(PyObject *raw, void *) { return PyLong_FromLong(door(raw)->inside.load()); }
PyObject *door_closed(PyObject *raw, void *) { return PyBool_FromLong(door(raw)->owner != 0); }

PyGetSetDef door_getset[] = {{"inside", door_inside, nullptr, "calls that are under way without the GIL", nullptr},
                             {"closed", door_closed, nullptr, "whether a thread has the library to itself", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

int forks = 0;

void Door::wait() {
    renew(this);
    unsigned long me = PyThread_get_thread_ident();
    if (!owner || owner == me || entered) return;
    Ref hold(Py_NewRef(reinterpret_cast<PyObject *>(this)));
    while (owner && owner != me) nap();
}

PyTypeObject DoorType = {PyVarObject_HEAD_INIT(nullptr, 0)};

int add_door_type(PyObject *module) {
    DoorType.tp_name = "backline._core.Door";
    DoorType.tp_basicsize = sizeof(Door);
    DoorType.tp_flags = Py_TPFLAGS_DEFAULT;
    DoorType.tp_doc = "Door(): lets one thread have a library to itself for a while. Prepared calls with this `door` wait meanwhile.";
    DoorType.tp_new = door_new;
    DoorType.tp_methods = door_methods;
    DoorType.tp_getset = door_getset;
    if (pthread_atfork(nullptr, nullptr, [] { ++forks; })) {
        PyErr_NoMemory();
        return -1;
    }
    return PyModule_AddType(module, &DoorType);
}

}  // namespace backline
