// PlanTemplate: a Plan for calls that differ in sizes alone. It holds the description of a PreparedCall with expressions of the
// call's sizes and strides in it, and the conditions under which it is right. See problems/symbolic_sizes.py.
#pragma once
#include "memo.hpp"

namespace backline {

extern PyTypeObject PlanTemplateType;

// What is known of calls like this one: a template that fits, or nullptr; and whether one ought to be made. A template may say that
// there is no Plan of one form for such sizes: then `plans` is false. Where calls like it are not even `known`, put says that they are.
struct FoundTemplate {
    Ref made;
    Ref near;  // one that would fit if the ranking chooses for these sizes what it was made for: template_same tells
    bool known = false, plans = false, due = false;
};
FoundTemplate template_find(const Signature &signature);

// As memo_put: keeps references to all three, or notes that there are such calls if `made` is nullptr; nothing if the Memo was emptied since `age`.
void template_put(const Signature &signature, PyObject *made, PyObject *operation, PyObject *snapshot, uint64_t age);

// Whether a template is for a call; `ask` where it is if the ranking chooses the same. Under the lock of those who know templates, as
// template_add.
enum class Fit { no, ask, yes };
Fit template_fits(PyObject *made, const Signature &signature);

// Notes whether a template is for calls whose sizes are at the levels of this one in the ranking.
void template_add(PyObject *made, const Signature &signature, bool same);
void template_note(PyObject *made, const Signature &signature, bool same);  // the same, under the lock

// Asks whether the ranking chooses the same algorithm for a call.
bool template_same(PyObject *made, const Signature &signature);

// Whether it has a Plan, or only says that there is none of one form.
bool template_plans(PyObject *made);

// The Plan of a template for a call; nullptr without an exception if it does not fit.
Ref template_plan(PyObject *made, const Signature &signature);

// The Choice of a Plan that template_plan made for these sizes.
Ref template_choice(PyObject *made, const std::vector<int64_t> &sizes);

// The function that finds that Choice, and its argument: what is cheap to keep.
Ref template_choice_source(PyObject *made, const std::vector<int64_t> &sizes);

void templates_empty();  // with the Memo

}  // namespace backline
