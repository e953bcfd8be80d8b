// A PreparedCall from Python's description of it: tuples of buffers, steps and overlaps, each looked at before it is believed.
#include <climits>
#include <new>
#include <string_view>

#include "plan_parse.hpp"

#include <numpy/arrayscalars.h>

namespace backline {
namespace {

// The elements of a sequence, which may change meanwhile: integers of another type run Python code.
class Items {
  public:
    explicit Items(PyObject *sequence) : tuple_(checked(PySequence_Tuple(sequence))) {}
    PyObject **begin() const { return PySequence_Fast_ITEMS(tuple_.get()); }
    PyObject **end() const { return begin() + PyTuple_GET_SIZE(tuple_.get()); }

  private:
    Ref tuple_;
};

std::vector<int64_t> integers(PyObject *sequence) {
    std::vector<int64_t> out;
    for (PyObject *item : Items(sequence)) out.push_back(from_python<int64_t>(item));
    return out;
}

// A list of integers that lives as long as the plan: moving the outer vector keeps the inner ones' storage.
const int64_t *table(PreparedCall *plan, PyObject *sequence) {
    plan->tables.push_back(integers(sequence));
    return plan->tables.back().data();
}

Pointer parse_pointer(PreparedCall *plan, PyObject *o) {
    need_tuple(o, "a pointer is a tuple (buffer, offset, stride or offsets)");
    if (PyTuple_GET_SIZE(o) != 3) fail("a pointer is (buffer, offset, stride or offsets)");
    const int64_t buffer = from_python<int64_t>(PyTuple_GET_ITEM(o, 0));
    if (buffer < 0 || size_t(buffer) >= plan->buffers.size()) fail("a pointer names a buffer that is not there");
    Pointer p{int(buffer), from_python<int64_t>(PyTuple_GET_ITEM(o, 1)), 0};
    PyObject *last = PyTuple_GET_ITEM(o, 2);
    if (PyLong_Check(last)) p.stride = from_python<int64_t>(last);
    else p.table = table(plan, last);
    return p;
}

std::string_view kind_of(PyObject *o, const char *what, Py_ssize_t least) {
    need_tuple(o, what);
    if (PyTuple_GET_SIZE(o) < least) fail(what);
    return checked(PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0)));
}

size_t byte_count(PyObject *value) {
    const size_t bytes = PyLong_AsSize_t(value);
    if (PyErr_Occurred()) throw PythonError();
    if (bytes > size_t(PTRDIFF_MAX) / 2) throw std::bad_alloc();
    return bytes;
}

void parse_buffer(PyObject *o, Buffer &b) {
    const std::string_view kind = kind_of(o, "a buffer is a tuple (kind, ...)", 2);
    PyObject *value = PyTuple_GET_ITEM(o, 1);
    if (kind == "argument") {
        b.kind = BufferKind::argument;
        const int64_t argument = from_python<int64_t>(value);
        b.argument = argument < 0 || argument > INT_MAX ? -1 : int(argument);
    } else if (kind == "work") {
        b.kind = BufferKind::work;
        b.bytes = (byte_count(value) + 63) / 64 * 64;
        b.shared = PyTuple_GET_SIZE(o) > 2 && from_python<bool>(PyTuple_GET_ITEM(o, 2));
    } else if (kind == "constant") {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(value, &data, &size) < 0) throw PythonError();
        b.kind = BufferKind::constant;
        b.bytes = size_t(size);
        b.aligned.reset(new char[size_t(size) + 16]);
        std::memcpy(b.aligned.get(), data, size_t(size));
    } else if (kind == "kept") {
        b.kind = BufferKind::kept;
        b.bytes = byte_count(value);
        b.aligned.reset(new (std::nothrow) char[b.bytes + 64]);
        if (!b.aligned) throw std::bad_alloc();
        b.start = b.aligned.get() + (64 - reinterpret_cast<uintptr_t>(b.aligned.get()) % 64) % 64;
    } else if (kind == "result" && PyTuple_GET_SIZE(o) == 4) {
        b.kind = BufferKind::result;
        if (!PyArray_DescrCheck(value)) fail("a result needs a dtype");
        b.descr.reset(as<PyArray_Descr>(Py_NewRef(value)));
        const auto shape = integers(PyTuple_GET_ITEM(o, 2));
        b.shape.assign(shape.begin(), shape.end());
        PyObject *order = PyTuple_GET_ITEM(o, 3);
        if (PyUnicode_Check(order)) {
            b.fortran = !PyUnicode_CompareWithASCIIString(order, "F");
        } else {
            const auto strides = integers(order);
            if (strides.size() != shape.size()) fail("strides and shape of a result differ in length");
            b.strides.assign(strides.begin(), strides.end());
        }
    } else {
        fail("a buffer's kind is argument, result, work, constant or kept");
    }
}

// ("call", address, arguments, returns, result)
void parse_call(PreparedCall *plan, PyObject *o, Step &s) {
    s.address = from_python<void *>(PyTuple_GET_ITEM(o, 1));
    if (!s.address) fail("a call needs an address");
    std::vector<ArgumentType> types;
    int floats = 0;
    for (PyObject *item : Items(PyTuple_GET_ITEM(o, 2))) {
        if (PyFloat_Check(item) || PyArray_IsScalar(item, Float)) {
            if (floats == kMaxFloats) fail("a call has more floating arguments than can be passed");
            const bool wide = PyFloat_Check(item);
            if (wide) s.floats[floats] = PyFloat_AS_DOUBLE(item);
            else std::memcpy(&s.floats[floats], &PyArrayScalar_VAL(item, Float), sizeof(float));
            ++floats;
            types.push_back(wide ? ArgumentType::float64 : ArgumentType::float32);
            continue;
        }
        types.push_back(ArgumentType::integer);
        Argument a{};
        if (PyLong_Check(item)) a.value = from_python<int64_t>(item);
        else if (PyList_Check(item)) a.varying = table(plan, item);
        else a.is_pointer = true, a.pointer = parse_pointer(plan, item);
        if (s.ints.size() == size_t(kMaxInts)) fail("a call has more integer arguments than can be passed");
        s.ints.push_back(a);
    }
    const int64_t returns = from_python<int64_t>(PyTuple_GET_ITEM(o, 3));
    if (returns < 0 || returns > 3) fail("a call returns nothing (0), a float (1), a double (2) or a status (3)");
    s.returns = ReturnKind(returns);
    if (!s.interface.prepare(s.returns, types)) fail("libffi cannot make such a call");
    if (s.returns != ReturnKind::none) s.result = parse_pointer(plan, PyTuple_GET_ITEM(o, 4));
}

// Steps that are written as (name, numbers..., source, target), or without a source.
constexpr struct {
    std::string_view name;
    StepKind kind;
    Py_ssize_t numbers;
    bool reads;
} kForms[] = {{"copy", StepKind::copy, 7, true},
              {"triangle", StepKind::triangle, 7, false},
              {"finite", StepKind::finite, 6, true},
              {"range", StepKind::range, 5, true}};

Step parse_step(PreparedCall *plan, PyObject *o) {
    const std::string_view kind = kind_of(o, "a step is a tuple (kind, ...)", 1);
    const Py_ssize_t size = PyTuple_GET_SIZE(o);
    Step s{};
    s.info_size = plan->info_size;
    if (kind == "call" && size == 5) {
        s.kind = StepKind::call;
        parse_call(plan, o, s);
        return s;
    }
    for (const auto &form : kForms) {
        if (kind != form.name || size != 1 + form.numbers + form.reads + 1) continue;
        s.kind = form.kind;
        int64_t v[8] = {};
        for (Py_ssize_t i = 0; i < form.numbers; ++i) v[i] = from_python<int64_t>(PyTuple_GET_ITEM(o, 1 + i));
        if (s.kind == StepKind::copy) {
            if (v[0] < 0 || v[0] >= int64_t(Element::count)) fail("a copy of an unknown element kind");
            s.copy = {Element(v[0]), v[1], v[2], v[3], v[4], v[5], v[6]};
        } else if (s.kind == StepKind::triangle) {
            if (v[0] < 0 || v[0] >= int64_t(TriangleMode::count)) fail("an unknown triangle mode");
            s.triangle = {TriangleMode(v[0]), v[1], v[2], v[3], v[4], int(v[5]), v[6] != 0};
        } else if (s.kind == StepKind::finite) {
            if (v[4] != 2 && v[4] != kFloat16 && v[4] != 4 && v[4] != 8) fail("finite looks at 2-, 4- or 8-byte floats");
            s.finite = {v[0], v[1], v[2], v[3], int(v[4]), v[5]};
        } else {
            s.range = {v[0], v[1], v[2], v[3], v[4]};
        }
        if (form.reads) s.source = parse_pointer(plan, PyTuple_GET_ITEM(o, size - 2));
        s.target = parse_pointer(plan, PyTuple_GET_ITEM(o, size - 1));
        return s;
    }
    fail("a step is call, copy, triangle, finite or range with all its fields");
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

void parse_groups(PreparedCall *plan, PyObject *groups, std::vector<Group> *into) {
    for (PyObject *item : Items(groups)) {
        long long count;
        int threads;
        PyObject *steps;
        need_tuple(item, "a group is a tuple (count, threads, steps)");
        if (!PyArg_ParseTuple(item, "LiO", &count, &threads, &steps)) throw PythonError();
        if (threads < 1) fail("a group has at least one thread");
        Group g{count, threads, {}};
        for (PyObject *step : Items(steps)) g.steps.push_back(parse_step(plan, step));
        for (const Step &s : g.steps)
            if (!covers(plan, s, count)) fail("a table of offsets or values is shorter than the group has items");
        into->push_back(std::move(g));
    }
}

void parse_plan(PreparedCall *plan, PyObject *buffers, PyObject *groups, PyObject *results, PyObject *overlaps) {
    for (PyObject *item : Items(buffers)) {
        if (plan->buffers.size() == size_t(kMaxBuffers)) fail("too many buffers in one plan");
        Buffer &b = plan->buffers.emplace_back();
        parse_buffer(item, b);
        if (b.kind == BufferKind::argument && (b.argument < 0 || b.argument >= plan->arguments))
            fail("a buffer names an argument that is not there");
    }
    parse_groups(plan, groups, &plan->groups);
    for (int64_t index : integers(results)) {
        if (index < 0 || size_t(index) >= plan->buffers.size()) fail("a result names a buffer that is not there");
        BufferKind kind = plan->buffers[size_t(index)].kind;
        if (kind != BufferKind::result && kind != BufferKind::argument) fail("only arguments and results can be returned");
        plan->results.push_back(int(index));
    }
    for (PyObject *item : Items(overlaps)) {
        Overlap o{};
        int same;
        long long a, b, c, d;
        need_tuple(item, "an overlap is a tuple of seven numbers");
        if (!PyArg_ParseTuple(item, "iLLiLLp", &o.out, &a, &b, &o.in, &c, &d, &same)) throw PythonError();
        if (o.out < 0 || o.out >= plan->arguments || o.in < 0 || o.in >= plan->arguments)
            fail("an overlap names an argument that is not there");
        o.out_low = a, o.out_high = b, o.in_low = c, o.in_high = d, o.same_allowed = same != 0;
        plan->overlaps.push_back(o);
    }
}

}  // namespace backline
