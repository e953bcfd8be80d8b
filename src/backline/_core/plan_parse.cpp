// A PreparedCall from Python's description of it: tuples of buffers, steps and overlaps, each looked at before it is believed.
#include <climits>
#include <new>

#include "plan_parse.hpp"

#include <numpy/arrayscalars.h>

namespace backline {
namespace {

bool parse_ints(PyObject *o, std::vector<int64_t> &out) {
    Ref fast(PySequence_Fast(o, "a sequence of integers"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        int64_t v = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i));
        if (v == -1 && PyErr_Occurred()) return false;
        out.push_back(v);
    }
    return true;
}

bool parse_pointer(PreparedCall *plan, PyObject *o, Pointer &p) {
    PyObject *last;
    if (!is_tuple(o, "a pointer is a tuple (buffer, offset, stride or offsets)")) return false;
    if (PyTuple_GET_SIZE(o) != 3) return fail("a pointer is (buffer, offset, stride or offsets)");
    long buffer = PyLong_AsLong(PyTuple_GET_ITEM(o, 0));
    p.offset = PyLong_AsLongLong(PyTuple_GET_ITEM(o, 1));
    if (PyErr_Occurred()) return false;
    if (buffer < 0 || size_t(buffer) >= plan->buffers.size()) return fail("a pointer names a buffer that is not there");
    p.buffer = int(buffer);
    last = PyTuple_GET_ITEM(o, 2);
    if (PyLong_Check(last)) {
        p.stride = PyLong_AsLongLong(last);
        return !PyErr_Occurred();
    }
    std::vector<int64_t> table;
    if (!parse_ints(last, table)) return false;
    p.stride = 0;
    plan->tables.push_back(std::move(table));
    p.table = plan->tables.back().data();  // moving the outer vector keeps the inner ones' storage
    return true;
}

bool parse_buffer(PyObject *o, Buffer &b) {
    if (!is_tuple(o, "a buffer is a tuple (kind, ...)")) return false;
    if (PyTuple_GET_SIZE(o) < 2) return fail("a buffer is (kind, ...)");
    const char *kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0));
    if (!kind) return false;
    PyObject *value = PyTuple_GET_ITEM(o, 1);
    if (!std::strcmp(kind, "argument")) {
        b.kind = BufferKind::argument;
        long argument = PyLong_AsLong(value);
        b.argument = argument < 0 || argument > INT_MAX ? -1 : int(argument);
    } else if (!std::strcmp(kind, "work")) {
        b.kind = BufferKind::work;
        size_t bytes = PyLong_AsSize_t(value);
        if (PyErr_Occurred()) return false;
        if (bytes > size_t(PTRDIFF_MAX) / 2) return PyErr_NoMemory(), false;
        b.bytes = (bytes + 63) / 64 * 64;
        b.shared = PyTuple_GET_SIZE(o) > 2 && PyObject_IsTrue(PyTuple_GET_ITEM(o, 2)) == 1;
    } else if (!std::strcmp(kind, "constant")) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(value, &data, &size) < 0) return false;
        b.kind = BufferKind::constant;
        b.bytes = size_t(size);
        b.aligned.reset(new char[size_t(size) + 16]);
        std::memcpy(b.aligned.get(), data, size_t(size));
    } else if (!std::strcmp(kind, "kept")) {
        b.kind = BufferKind::kept;
        b.bytes = PyLong_AsSize_t(value);
        if (PyErr_Occurred()) return false;
        if (b.bytes <= size_t(PTRDIFF_MAX) / 2) b.aligned.reset(new (std::nothrow) char[b.bytes + 64]);
        if (!b.aligned) return PyErr_NoMemory(), false;
        b.start = b.aligned.get() + (64 - reinterpret_cast<uintptr_t>(b.aligned.get()) % 64) % 64;
    } else if (!std::strcmp(kind, "result") && PyTuple_GET_SIZE(o) == 4) {
        b.kind = BufferKind::result;
        if (!PyArray_DescrCheck(value)) return fail("a result needs a dtype");
        b.descr.reset(reinterpret_cast<PyArray_Descr *>(Py_NewRef(value)));
        std::vector<int64_t> numbers;
        if (!parse_ints(PyTuple_GET_ITEM(o, 2), numbers)) return false;
        b.shape.assign(numbers.begin(), numbers.end());
        PyObject *order = PyTuple_GET_ITEM(o, 3);
        if (PyUnicode_Check(order)) {
            b.fortran = !PyUnicode_CompareWithASCIIString(order, "F");
        } else {
            numbers.clear();
            if (!parse_ints(order, numbers)) return false;
            if (numbers.size() != b.shape.size()) return fail("strides and shape of a result differ in length");
            b.strides.assign(numbers.begin(), numbers.end());
        }
    } else {
        return fail("a buffer's kind is argument, result, work, constant or kept");
    }
    return !PyErr_Occurred();
}

bool parse_step(PreparedCall *plan, PyObject *o, Step &s) {
    if (!is_tuple(o, "a step is a tuple (kind, ...)")) return false;
    if (PyTuple_GET_SIZE(o) < 1) return fail("a step is a tuple (kind, ...)");
    const char *kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0));
    if (!kind) return false;
    Py_ssize_t size = PyTuple_GET_SIZE(o);
    if (!std::strcmp(kind, "call") && size == 5) {
        s.kind = StepKind::call;
        s.address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(o, 1));
        if (!s.address) return fail("a call needs an address");
        Ref arguments(PySequence_Fast(PyTuple_GET_ITEM(o, 2), "arguments of a call"));
        if (!arguments) return false;
        std::vector<ArgumentType> types;
        int floats = 0;
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(arguments.get()); ++i) {
            PyObject *item = PySequence_Fast_GET_ITEM(arguments.get(), i);
            if (PyFloat_Check(item) || PyArray_IsScalar(item, Float)) {
                if (floats == kMaxFloats) return fail("a call has more floating arguments than can be passed");
                const bool wide = PyFloat_Check(item);
                if (wide) s.floats[floats] = PyFloat_AS_DOUBLE(item);
                else std::memcpy(&s.floats[floats], &PyArrayScalar_VAL(item, Float), sizeof(float));
                ++floats;
                types.push_back(wide ? ArgumentType::float64 : ArgumentType::float32);
                continue;
            }
            types.push_back(ArgumentType::integer);
            Argument a{};
            if (PyLong_Check(item)) {
                a.value = PyLong_AsLongLong(item);
                if (PyErr_Occurred()) return false;
            } else if (PyList_Check(item)) {
                std::vector<int64_t> table;
                if (!parse_ints(item, table)) return false;
                plan->tables.push_back(std::move(table));
                a.varying = plan->tables.back().data();
            } else {
                a.is_pointer = true;
                if (!parse_pointer(plan, item, a.pointer)) return false;
            }
            if (s.ints.size() == size_t(kMaxInts)) return fail("a call has more integer arguments than can be passed");
            s.ints.push_back(a);
        }
        long returns = PyLong_AsLong(PyTuple_GET_ITEM(o, 3));
        if (PyErr_Occurred()) return false;
        if (returns < 0 || returns > 3) return fail("a call returns nothing (0), a float (1), a double (2) or a status (3)");
        s.returns = ReturnKind(returns);
        s.info_size = plan->info_size;
        if (!s.interface.prepare(s.returns, types)) return fail("libffi cannot make such a call");
        return s.returns == ReturnKind::none || parse_pointer(plan, PyTuple_GET_ITEM(o, 4), s.result);
    }
    if (!std::strcmp(kind, "copy") && size == 10) {
        s.kind = StepKind::copy;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 8; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[0] < 0 || v[0] >= int64_t(Element::count)) return fail("a copy of an unknown element kind");
        s.copy = {Element(v[0]), v[1], v[2], v[3], v[4], v[5], v[6]};
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 9), s.target);
    }
    if (!std::strcmp(kind, "triangle") && size == 9) {
        s.kind = StepKind::triangle;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 8; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[0] < 0 || v[0] >= int64_t(TriangleMode::count)) return fail("an unknown triangle mode");
        s.triangle = {TriangleMode(v[0]), v[1], v[2], v[3], v[4], int(v[5]), v[6] != 0};
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.target);
    }
    if (!std::strcmp(kind, "finite") && size == 9) {
        s.kind = StepKind::finite;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 7; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        if (v[4] != 2 && v[4] != 4 && v[4] != 8) return fail("finite looks at bfloat16 and at 4- or 8-byte floats");
        s.finite = {v[0], v[1], v[2], v[3], int(v[4]), v[5]};
        s.info_size = plan->info_size;
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 7), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 8), s.target);
    }
    if (!std::strcmp(kind, "range") && size == 8) {
        s.kind = StepKind::range;
        std::vector<int64_t> v;
        for (Py_ssize_t i = 1; i < 6; ++i) v.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(o, i)));
        if (PyErr_Occurred()) return false;
        s.range = {v[0], v[1], v[2], v[3], v[4]};
        s.info_size = plan->info_size;
        return parse_pointer(plan, PyTuple_GET_ITEM(o, 6), s.source) && parse_pointer(plan, PyTuple_GET_ITEM(o, 7), s.target);
    }
    return fail("a step is call, copy, triangle, finite or range with all its fields");
}

bool covers(const PreparedCall *plan, const Step &s, int64_t count) {
    auto long_enough = [&](const int64_t *data) {
        if (!data) return true;
        for (const auto &table : plan->tables)
            if (table.data() == data) return int64_t(table.size()) >= count;
        return false;
    };
    for (const Argument &a : s.ints)
        if (!long_enough(a.is_pointer ? a.pointer.table : a.varying)) return false;
    return long_enough(s.result.table) && long_enough(s.source.table) && long_enough(s.target.table);
}

}  // namespace

bool parse_groups(PreparedCall *plan, PyObject *groups, std::vector<Group> *into) {
    Ref fast(PySequence_Fast(groups, "groups"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        long long count;
        int threads;
        PyObject *steps, *item = PySequence_Fast_GET_ITEM(fast.get(), i);
        if (!is_tuple(item, "a group is a tuple (count, threads, steps)")) return false;
        if (!PyArg_ParseTuple(item, "LiO", &count, &threads, &steps)) return false;
        if (threads < 1) return fail("a group has at least one thread");
        Group g{count, threads, {}};
        Ref each(PySequence_Fast(steps, "steps"));
        if (!each) return false;
        for (Py_ssize_t j = 0; j < PySequence_Fast_GET_SIZE(each.get()); ++j) {
            Step s{};
            if (!parse_step(plan, PySequence_Fast_GET_ITEM(each.get(), j), s)) return false;
            g.steps.push_back(std::move(s));
        }
        for (const Step &s : g.steps)
            if (!covers(plan, s, count)) return fail("a table of offsets or values is shorter than the group has items");
        into->push_back(std::move(g));
    }
    return true;
}

bool parse_plan(PreparedCall *plan, PyObject *buffers, PyObject *groups, PyObject *results, PyObject *overlaps) {
    Ref fast(PySequence_Fast(buffers, "buffers"));
    if (!fast) return false;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.get());
    if (n > kMaxBuffers) return fail("too many buffers in one plan");
    for (Py_ssize_t i = 0; i < n; ++i) {
        plan->buffers.emplace_back();
        if (!parse_buffer(PySequence_Fast_GET_ITEM(fast.get(), i), plan->buffers.back())) return false;
        const Buffer &b = plan->buffers.back();
        if (b.kind == BufferKind::argument && (b.argument < 0 || b.argument >= plan->arguments))
            return fail("a buffer names an argument that is not there");
    }
    if (!parse_groups(plan, groups, &plan->groups)) return false;
    std::vector<int64_t> order;
    if (!parse_ints(results, order)) return false;
    for (int64_t index : order) {
        if (index < 0 || size_t(index) >= plan->buffers.size()) return fail("a result names a buffer that is not there");
        BufferKind kind = plan->buffers[size_t(index)].kind;
        if (kind != BufferKind::result && kind != BufferKind::argument) return fail("only arguments and results can be returned");
        plan->results.push_back(int(index));
    }
    fast.reset(PySequence_Fast(overlaps, "overlaps"));
    if (!fast) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
        Overlap o{};
        int same;
        long long a, b, c, d;
        PyObject *item = PySequence_Fast_GET_ITEM(fast.get(), i);
        if (!is_tuple(item, "an overlap is a tuple of seven numbers")) return false;
        if (!PyArg_ParseTuple(item, "iLLiLLp", &o.out, &a, &b, &o.in, &c, &d, &same))
            return false;
        if (o.out < 0 || o.out >= plan->arguments || o.in < 0 || o.in >= plan->arguments)
            return fail("an overlap names an argument that is not there");
        o.out_low = a, o.out_high = b, o.in_low = c, o.in_high = d, o.same_allowed = same != 0;
        plan->overlaps.push_back(o);
    }
    return true;
}

}  // namespace backline
