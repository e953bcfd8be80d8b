#include "pool.hpp"

#include "boundary.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

namespace backline {
namespace {

struct Block {
    void *data;
    size_t size;
};

std::mutex &lock = *new std::mutex;
// Oldest first; a handful, so a linear search is the fast one. Never destroyed: threads may still run when the process ends.
std::vector<Block> &idle = *new std::vector<Block>;
size_t idle_bytes = 0;
size_t idle_limit = size_t(128) << 20;
uint64_t taken = 0, reused = 0;

constexpr size_t kPage = size_t(64) << 10;
constexpr size_t kMost = size_t(PTRDIFF_MAX) - kPage;  // more is no size of a block

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

void trim(size_t limit) {  // called with the lock held
    while (idle_bytes > limit) {
        idle_bytes -= idle.front().size;
        std::free(idle.front().data);
        idle.erase(idle.begin());
    }
}

}  // namespace

void *pool_take(size_t bytes) {
    if (bytes < kPooledBytes) return std::aligned_alloc(64, (std::max<size_t>(bytes, 1) + 63) / 64 * 64);
    if (bytes > kMost) return nullptr;
    size_t size = rounded(bytes);
    {
        std::lock_guard<std::mutex> guard(lock);
        ++taken;
        for (size_t i = idle.size(); i-- > 0;) {
            if (idle[i].size != size) continue;
            void *data = idle[i].data;
            idle_bytes -= size;
            idle.erase(idle.begin() + std::ptrdiff_t(i));
            ++reused;
            return data;
        }
    }
    void *data = std::aligned_alloc(kPage, size);
#ifdef MADV_HUGEPAGE
    if (data && size >= (size_t(4) << 20)) madvise(data, size, MADV_HUGEPAGE);  // a hint: failure changes nothing
#endif
    return data;
}

void pool_give(void *block, size_t bytes) {
    if (!block) return;
    if (bytes < kPooledBytes) return std::free(block);
    size_t size = rounded(bytes);
    std::lock_guard<std::mutex> guard(lock);
    // A block that realloc moved is aligned for numbers only, and workspaces want more.
    if (size > idle_limit || reinterpret_cast<uintptr_t>(block) % kPage) return std::free(block);
    trim(idle_limit - size);
    try {
        idle.push_back({block, size});
    } catch (const std::bad_alloc &) {
        return std::free(block);
    }
    idle_bytes += size;
}

namespace {

// NumPy remembers the handler an array was made with and frees through it, so arrays own pooled data like any other.
void *handler_malloc(void *, size_t bytes) { return pool_take(bytes); }
void *handler_calloc(void *, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return nullptr;
    void *data = pool_take(count * size);
    if (data) std::memset(data, 0, count * size);
    return data;
}
void handler_free(void *, void *data, size_t bytes) { pool_give(data, bytes); }

// realloc is not told the old size, so pooled data carries none either: ndarray.resize of a pooled array moves the
// data to a block of the C heap, which is what a block below the pool's threshold is as well.
void *handler_realloc(void *, void *data, size_t bytes) {
    return bytes > kMost ? nullptr : std::realloc(data, std::max(rounded(bytes), kPooledBytes));
}

PyDataMem_Handler handler = {
    "backline_pool", 1, {nullptr, handler_malloc, handler_calloc, handler_realloc, handler_free}};
PyObject *handler_capsule = nullptr;

// A new array in C order for Python code: its large results, too, lie in memory that is used again.
PyObject *empty(PyObject *shape, PyObject *dtype) {
    PyArray_Dims sizes = {nullptr, 0};
    PyArray_Descr *descr = nullptr;
    if (!PyArray_IntpConverter(shape, &sizes)) throw PythonError();
    if (!PyArray_DescrConverter(dtype, &descr)) {
        PyDimMem_FREE(sizes.ptr);
        throw PythonError();
    }
    PyObject *array = new_array(descr, sizes.len, sizes.ptr, nullptr, false);
    PyDimMem_FREE(sizes.ptr);
    return array;
}

PyObject *pool_info() {
    Py_ssize_t bytes, blocks, limit;
    unsigned long long all, again;
    {  // not while Python allocates: the garbage collector may run then, and arrays that it frees come back here
        std::lock_guard<std::mutex> guard(lock);
        bytes = Py_ssize_t(idle_bytes), blocks = Py_ssize_t(idle.size()), limit = Py_ssize_t(idle_limit), all = taken, again = reused;
    }
    return Py_BuildValue("{s:n,s:n,s:n,s:K,s:K}", "idle_bytes", bytes, "idle_blocks", blocks, "limit_bytes", limit, "taken", all, "reused",
                         again);
}

void pool_limit(int64_t limit) {
    if (limit < 0) throw python_error(PyExc_ValueError, "the pool's limit is a number of bytes, 0 or more");
    std::lock_guard<std::mutex> guard(lock);
    idle_limit = size_t(limit);
    trim(idle_limit);
}

PyMethodDef methods[] = {
    function<empty>("empty", "empty(shape, dtype): an uninitialised array in C order, its data from the pool when large."),
    function<pool_info>("pool_info", "State of the pool of large blocks: bytes and blocks kept, limit, blocks taken, reused."),
    function<pool_limit>("pool_limit", "Keep at most this many bytes of freed large blocks."),
    {}};

}  // namespace

PyObject *new_array(PyArray_Descr *descr, int ndim, const npy_intp *shape, const npy_intp *strides, bool fortran) {
    size_t bytes = size_t(PyDataType_ELSIZE(descr));
    bool large = false;
    for (int d = 0; d < ndim; ++d) bytes *= size_t(shape[d]);
    large = bytes >= kPooledBytes;
    PyObject *previous = nullptr;
    if (large && !(previous = PyDataMem_SetHandler(handler_capsule))) {
        Py_DECREF(descr);
        return nullptr;
    }
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, const_cast<npy_intp *>(shape),
                                           const_cast<npy_intp *>(strides), nullptr,
                                           fortran ? NPY_ARRAY_F_CONTIGUOUS : 0, nullptr);
    if (large) {
        PyObject *ours = PyDataMem_SetHandler(previous);
        Py_DECREF(previous);
        if (!ours) {
            Py_XDECREF(array);
            return nullptr;
        }
        Py_DECREF(ours);
    }
    return array;
}

int add_pool(PyObject *module) {
    handler_capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
    return handler_capsule ? PyModule_AddFunctions(module, methods) : -1;
}

}  // namespace backline
