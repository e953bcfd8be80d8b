// A template of Plans: what Python describes, whether it fits a call, and the PreparedCall that it makes.
#include "plan_template.hpp"

#include "plan_parse.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <new>
#include <optional>

namespace backline {
namespace {

constexpr int kMostQuantities = 256;
constexpr size_t kMostPlaces = 4096;  // that a template remembers

struct Term {
    int64_t factor;
    double real;
    std::vector<int> of;  // the quantities that are multiplied
};

struct Sum {
    std::vector<Term> terms;
    bool real = false;  // its factors are floating-point numbers

    // False if the result does not fit.
    bool integer(const int64_t *values, int64_t &sum) const {
        sum = 0;
        for (const Term &t : terms) {
            int64_t product = t.factor;
            for (int i : t.of)
                if (__builtin_mul_overflow(product, values[i], &product)) return false;
            if (__builtin_add_overflow(sum, product, &sum)) return false;
        }
        return !real;
    }
    double number(const int64_t *values) const {
        double sum = 0;
        for (const Term &t : terms) {
            double product = t.real;
            for (int i : t.of) product *= double(values[i]);
            sum += product;
        }
        return sum;
    }
};

struct Quantity {  // a size or a stride of an array
    int array;
    bool stride;
    int axis;
};

struct Quotient {
    bool remainder;
    Sum dividend, divisor;

    bool evaluate(const int64_t *values, int64_t &result) const {
        int64_t a, b;
        if (!dividend.integer(values, a) || !divisor.integer(values, b) || b == 0) return false;
        if (a == std::numeric_limits<int64_t>::min() && b == -1) return false;
        int64_t quotient = a / b;
        if (a % b && (a < 0) != (b < 0)) --quotient;  // as Python rounds
        result = remainder ? a - quotient * b : quotient;
        return true;
    }
};

struct Condition {
    Sum sum;
    double low, high;  // of a sum of real numbers
    int64_t least, most;
    std::vector<int64_t> excluded;

    bool holds(const int64_t *values) const {
        if (sum.real) {
            const double number = sum.number(values);
            return low <= number && number <= high;
        }
        int64_t number;
        if (!sum.integer(values, number) || number < least || number > most) return false;
        for (int64_t other : excluded)
            if (number == other) return false;
        return true;
    }
};

struct Patch {
    size_t at;
    int width, sum;
};

// A part of the description: an object, a number, a tuple or list of parts, or bytes with numbers in them.
struct Part {
    char kind;
    PyObject *object = nullptr;
    int sum = 0;
    std::vector<Part> parts;
    std::vector<Patch> patches;
};

struct Level {  // the logarithm of a sum, rounded to so many steps to a doubling
    Sum sum;
    double steps;
};
using Place = std::vector<int>;  // the levels of a call

struct PlanTemplate {
    PyObject_HEAD
    std::vector<Quantity> quantities;
    std::vector<Quotient> quotients;
    std::vector<Condition> first, rest;  // conditions; the first ones know no quotients
    std::vector<Level> levels;
    std::map<Place, bool> places;  // whether the ranking chooses there what the template was made for
    std::vector<Sum> sums;
    std::optional<Part> description;
    std::vector<PyObject *> objects;  // owned, for the parts
    PyObject *options, *rwlock, *describe, *same;
    uint64_t lasts;  // calls of one shape, after which it has a better Plan; 0 for none
};

// From Python's description ----------------------------------------------------------------------------------------------

template <class Take>
void each(PyObject *sequence, const Take &take) {
    Ref tuple(checked(PySequence_Tuple(sequence)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); ++i) take(PyTuple_GET_ITEM(tuple.get(), i));
}

PyObject *item(PyObject *tuple, Py_ssize_t i, Py_ssize_t count) {
    need_tuple(tuple, "a part of a template is a tuple");
    if (PyTuple_GET_SIZE(tuple) != count) fail("a part of a template has too many fields, or too few");
    return PyTuple_GET_ITEM(tuple, i);
}

Sum parse_sum(PyObject *o, size_t known) {
    Sum sum;
    each(o, [&](PyObject *raw) {
        Term term{};
        PyObject *factor = item(raw, 1, 2);
        if (PyFloat_Check(factor)) sum.real = true;
        else term.factor = from_python<int64_t>(factor);
        term.real = from_python<double>(factor);
        each(item(raw, 0, 2), [&](PyObject *index) {
            const int64_t i = from_python<int64_t>(index);
            if (i < 0 || size_t(i) >= known) fail("a template names a quantity that is not there");
            term.of.push_back(int(i));
        });
        sum.terms.push_back(std::move(term));
    });
    return sum;
}

void parse_condition(PlanTemplate *self, PyObject *o, size_t known) {
    Condition c{};
    c.sum = parse_sum(item(o, 0, 4), known);
    PyObject *low = item(o, 1, 4), *high = item(o, 2, 4);
    c.low = low == Py_None ? -HUGE_VAL : from_python<double>(low);
    c.high = high == Py_None ? HUGE_VAL : from_python<double>(high);
    c.least = low == Py_None || c.sum.real ? std::numeric_limits<int64_t>::min() : from_python<int64_t>(low);
    c.most = high == Py_None || c.sum.real ? std::numeric_limits<int64_t>::max() : from_python<int64_t>(high);
    each(item(o, 3, 4), [&](PyObject *value) { c.excluded.push_back(from_python<int64_t>(value)); });
    bool early = true;
    for (const Term &t : c.sum.terms)
        for (int i : t.of) early &= size_t(i) < self->quantities.size();
    (early ? self->first : self->rest).push_back(std::move(c));
}

int sum_number(const PlanTemplate *self, PyObject *o) {
    const int64_t i = from_python<int64_t>(o);
    if (i < 0 || size_t(i) >= self->sums.size()) fail("a template names a sum that is not there");
    return int(i);
}

Part parse_part(PlanTemplate *self, PyObject *o) {
    need_tuple(o, "a part of a template is a tuple");
    if (PyTuple_GET_SIZE(o) < 2) fail("a part of a template has a kind and more");
    const char *kind = checked(PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0)));
    PyObject *value = PyTuple_GET_ITEM(o, 1);
    Part part{kind[0]};
    auto own = [&](PyObject *object) {
        self->objects.push_back(object);
        part.object = Py_NewRef(object);
    };
    switch (part.kind) {
        case '=': own(value); break;
        case '#': part.sum = sum_number(self, value); break;
        case 't':
        case 'l': each(value, [&](PyObject *child) { part.parts.push_back(parse_part(self, child)); }); break;
        case 'b':
            if (!PyBytes_Check(value)) fail("the constants of a template are bytes");
            own(value);
            each(item(o, 2, 3), [&](PyObject *raw) {
                const int64_t at = from_python<int64_t>(item(raw, 0, 3)), width = from_python<int64_t>(item(raw, 1, 3));
                if (at < 0 || (width != 4 && width != 8) || at + width > PyBytes_GET_SIZE(value)) fail("a number is outside the constants");
                part.patches.push_back({size_t(at), int(width), sum_number(self, item(raw, 2, 3))});
            });
            break;
        default: fail("a part of a template is =, #, t, l or b");
    }
    return part;
}

template <class Run>
void each_member(PlanTemplate *self, const Run &run) {
    run(self->quantities), run(self->quotients), run(self->first), run(self->rest), run(self->levels), run(self->places),
        run(self->sums), run(self->description), run(self->objects);
}

PyObject *template_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"quantities", "quotients", "conditions", "levels", "sums", "description",
                                  "options",    "rwlock",    "describe",   "same",   "lasts", nullptr};
    PyObject *quantities, *quotients, *conditions, *levels, *sums, *description, *options, *rwlock, *describe, *same;
    Py_ssize_t lasts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOO!OOOn", const_cast<char **>(names), &quantities, &quotients, &conditions, &levels,
                                     &sums, &description, &PyDict_Type, &options, &rwlock, &describe, &same, &lasts))
        return nullptr;
    if (rwlock != Py_None && Py_TYPE(rwlock) != &ReadWriteLockType) throw python_error(PyExc_TypeError, "rwlock must be a ReadWriteLock or None");
    Ref made(checked(type->tp_alloc(type, 0)));
    PlanTemplate *self = as<PlanTemplate>(made.get());
    each_member(self, [](auto &member) { new (&member) std::remove_reference_t<decltype(member)>(); });
    self->options = Py_NewRef(options);
    self->rwlock = Py_NewRef(rwlock);
    self->describe = Py_NewRef(describe);
    self->same = Py_NewRef(same);
    self->lasts = lasts < 0 ? 0 : uint64_t(lasts);
    each(quantities, [&](PyObject *raw) {
        const int64_t array = from_python<int64_t>(item(raw, 0, 3)), axis = from_python<int64_t>(item(raw, 2, 3));
        if (array < 0 || array >= Signature::kArrays || axis < 0 || axis >= NPY_MAXDIMS) fail("a quantity is of an array that is not there");
        self->quantities.push_back({int(array), from_python<bool>(item(raw, 1, 3)), int(axis)});
    });
    size_t known = self->quantities.size();
    each(quotients, [&](PyObject *raw) {
        self->quotients.push_back({from_python<bool>(item(raw, 0, 3)), parse_sum(item(raw, 1, 3), known), parse_sum(item(raw, 2, 3), known)});
        ++known;
    });
    if (known > size_t(kMostQuantities)) fail("a template has too many quantities");
    each(conditions, [&](PyObject *raw) { parse_condition(self, raw, known); });
    each(levels, [&](PyObject *raw) { self->levels.push_back({parse_sum(item(raw, 0, 2), known), from_python<double>(item(raw, 1, 2))}); });
    each(sums, [&](PyObject *raw) { self->sums.push_back(parse_sum(raw, known)); });
    if (description != Py_None) self->description = parse_part(self, description);
    return made.release();
}

int template_traverse(PyObject *raw, visitproc visit, void *arg) {
    PlanTemplate *self = as<PlanTemplate>(raw);
    for (PyObject *o : self->objects) Py_VISIT(o);
    Py_VISIT(self->options);
    Py_VISIT(self->rwlock);
    Py_VISIT(self->describe);
    Py_VISIT(self->same);
    return 0;
}

// What describes and compares may lead back to it. The rest stays: it may be used after it was cleared.
int template_clear(PyObject *raw) {
    for (PyObject **slot : {&as<PlanTemplate>(raw)->describe, &as<PlanTemplate>(raw)->same}) {
        PyObject *old = *slot;
        *slot = Py_NewRef(Py_None);
        Py_XDECREF(old);
    }
    return 0;
}

void template_dealloc(PyObject *raw) {
    PyObject_GC_UnTrack(raw);
    PlanTemplate *self = as<PlanTemplate>(raw);
    for (PyObject *o : self->objects) Py_DECREF(o);
    Py_XDECREF(self->options);
    Py_XDECREF(self->rwlock);
    Py_XDECREF(self->describe);
    Py_XDECREF(self->same);
    each_member(self, [](auto &member) { std::destroy_at(&member); });
    Py_TYPE(raw)->tp_free(raw);
}

// A call ------------------------------------------------------------------------------------------------------------------

// The quantities of a call, and the quotients of them; false if the template is not for it.
bool fits(const PlanTemplate *self, const Signature &s, int64_t *values) {
    size_t n = 0;
    for (const Quantity &q : self->quantities) {
        if (q.array >= s.array_count) return false;
        PyArrayObject *a = as<PyArrayObject>(s.arrays[q.array]);
        if (q.axis >= PyArray_NDIM(a)) return false;
        values[n++] = q.stride ? PyArray_STRIDE(a, q.axis) : PyArray_DIM(a, q.axis);
    }
    for (const Condition &c : self->first)
        if (!c.holds(values)) return false;
    for (const Quotient &q : self->quotients)
        if (!q.evaluate(values, values[n++])) return false;
    for (const Condition &c : self->rest)
        if (!c.holds(values)) return false;
    return true;
}

Place place_of(const PlanTemplate *self, const int64_t *values) {
    Place place;
    for (const Level &level : self->levels) {
        int64_t integer = 0;
        const double number = level.sum.real ? level.sum.number(values) : level.sum.integer(values, integer) ? double(integer) : HUGE_VAL;
        place.push_back(int(std::nearbyint(level.steps * std::log2(std::clamp(number, 1.0, 1e300)))));
    }
    return place;
}

Ref sizes_of(const int64_t *values, size_t count) {
    Ref sizes(checked(PyTuple_New(Py_ssize_t(count))));
    for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(sizes.get(), Py_ssize_t(i), checked(PyLong_FromLongLong(values[i])));
    return sizes;
}

struct DoesNotFit {};

PyObject *build(const PlanTemplate *self, const Part &part, const int64_t *values) {
    auto number = [&](int sum) {
        int64_t result;
        if (!self->sums[size_t(sum)].integer(values, result)) throw DoesNotFit();
        return result;
    };
    switch (part.kind) {
        case '=': return Py_NewRef(part.object);
        case '#': return checked(PyLong_FromLongLong(number(part.sum)));
        case 'b': {
            Ref bytes(checked(PyBytes_FromStringAndSize(PyBytes_AS_STRING(part.object), PyBytes_GET_SIZE(part.object))));
            for (const Patch &p : part.patches) {
                const int64_t value = number(p.sum);
                if (p.width == 4 && value != int32_t(value)) throw DoesNotFit();
                std::memcpy(PyBytes_AS_STRING(bytes.get()) + p.at, &value, size_t(p.width));  // little endian
            }
            return bytes.release();
        }
        default: break;
    }
    const Py_ssize_t count = Py_ssize_t(part.parts.size());
    Ref made(checked(part.kind == 't' ? PyTuple_New(count) : PyList_New(count)));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *child = build(self, part.parts[size_t(i)], values);
        if (part.kind == 't') PyTuple_SET_ITEM(made.get(), i, child);
        else PyList_SET_ITEM(made.get(), i, child);
    }
    return made.release();
}

}  // namespace

PyTypeObject PlanTemplateType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Fit template_fits(PyObject *made, const Signature &s) {
    int64_t values[kMostQuantities];
    const PlanTemplate *self = as<PlanTemplate>(made);
    if (!fits(self, s, values)) return Fit::no;
    if (self->levels.empty()) return Fit::yes;
    auto at = self->places.find(place_of(self, values));
    if (at != self->places.end()) return at->second ? Fit::yes : Fit::no;
    return self->same == Py_None ? Fit::no : Fit::ask;
}

void template_add(PyObject *made, const Signature &s, bool same) {
    int64_t values[kMostQuantities];
    PlanTemplate *self = as<PlanTemplate>(made);
    if (!fits(self, s, values)) return;
    if (self->places.size() >= kMostPlaces) self->places.clear();
    self->places[place_of(self, values)] = same;
}

bool template_same(PyObject *made, const Signature &s) {
    int64_t values[kMostQuantities];
    const PlanTemplate *self = as<PlanTemplate>(made);
    if (self->same == Py_None || !fits(self, s, values)) return false;
    Ref same(Py_NewRef(self->same)), sizes(sizes_of(values, self->quantities.size()));
    return from_python<bool>(Ref(checked(PyObject_CallOneArg(same.get(), sizes.get()))).get());
}

bool template_plans(PyObject *made) {
    return as<PlanTemplate>(made)->description.has_value();
}

Ref template_plan(PyObject *made, const Signature &s) {
    int64_t values[kMostQuantities];
    const PlanTemplate *self = as<PlanTemplate>(made);
    if (!self->description || !fits(self, s, values)) return {};
    Ref arguments;
    try {
        arguments.reset(build(self, *self->description, values));
    } catch (const DoesNotFit &) {
        return {};
    }
    Ref plan(checked(PyObject_Call(reinterpret_cast<PyObject *>(&PreparedCallType), arguments.get(), self->options)));
    PreparedCall *call = as<PreparedCall>(plan.get());
    if (self->rwlock != Py_None) call->rwlock.set(self->rwlock);
    call->sizes.assign(values, values + self->quantities.size());
    Py_SETREF(call->origin, Py_NewRef(made));
    call->lasts = self->lasts;
    return plan;
}

Ref template_choice(PyObject *made, const std::vector<int64_t> &sizes) {
    Ref describe(Py_NewRef(as<PlanTemplate>(made)->describe));
    if (describe.get() == Py_None) return Ref(Py_NewRef(Py_None));
    Ref values(sizes_of(sizes.data(), sizes.size()));
    return Ref(checked(PyObject_CallOneArg(describe.get(), values.get())));
}

Ref template_choice_source(PyObject *made, const std::vector<int64_t> &sizes) {
    Ref describe(Py_NewRef(as<PlanTemplate>(made)->describe));
    if (describe.get() == Py_None) return describe;
    Ref values(sizes_of(sizes.data(), sizes.size()));
    return Ref(checked(PyTuple_Pack(2, describe.get(), values.get())));
}

int add_plan_template_type(PyObject *module) {
    describe<PlanTemplate>(
        PlanTemplateType, "backline._core.PlanTemplate", entry<template_new>,
        "PlanTemplate(quantities, quotients, conditions, levels, sums, description, options, rwlock, describe, same, lasts)\n\n"
        "A Plan for calls that differ in sizes and strides alone: the description of a PreparedCall with sums of products of these in\n"
        "it, and the conditions under which it holds. Without a description it says that such calls have no Plan of one form.",
        Py_TPFLAGS_HAVE_GC);
    PlanTemplateType.tp_dealloc = template_dealloc;
    PlanTemplateType.tp_traverse = template_traverse;
    PlanTemplateType.tp_clear = template_clear;
    return PyModule_AddType(module, &PlanTemplateType);
}

}  // namespace backline
