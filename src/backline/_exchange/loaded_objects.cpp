// The addresses through which a loaded ELF object calls functions of other objects: its relocations, read from memory.
//
// The object's own tables in memory are read and not its file, which may have been replaced since. Nothing here runs Python or waits
// while the loader's lock is held: the GIL is kept, and a thread that loads an object with the GIL cannot wait for it meanwhile.
#include "loaded_objects.hpp"

#if BACKLINE_HAS_EXCHANGE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace backline {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobal = R_X86_64_GLOB_DAT, kAbsolute = R_X86_64_64;
#else
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobal = R_AARCH64_GLOB_DAT, kAbsolute = R_AARCH64_ABS64;
#endif

struct Object {
    std::string path;
    uintptr_t base, dynamic, start, end;
};

// Called with the loader's lock held, from C: no exception may pass, and no Python may run.
int note(dl_phdr_info *info, size_t, void *data) {
    try {
        Object object{info->dlpi_name ? info->dlpi_name : "", info->dlpi_addr, 0, UINTPTR_MAX, 0};
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr) &part = info->dlpi_phdr[i];
            const uintptr_t at = info->dlpi_addr + part.p_vaddr;
            if (part.p_type == PT_DYNAMIC) object.dynamic = at;
            if (part.p_type != PT_LOAD) continue;
            object.start = std::min(object.start, at);
            object.end = std::max(object.end, at + part.p_memsz);
        }
        if (object.dynamic && object.path.find('/') != std::string::npos)
            static_cast<std::vector<Object> *>(data)->push_back(std::move(object));
        return 0;
    } catch (...) {
        return 1;
    }
}

PyObject *objects() {
    std::vector<Object> found;
    if (dl_iterate_phdr(note, &found)) throw std::bad_alloc();
    Ref list(checked(PyList_New(0)));
    for (const Object &o : found) {
        Ref path(checked(PyUnicode_DecodeFSDefault(o.path.c_str())));
        Ref row(checked(Py_BuildValue("(OKKKK)", path.get(), (unsigned long long)o.base, (unsigned long long)o.dynamic,
                                      (unsigned long long)o.start, (unsigned long long)o.end)));
        checked(PyList_Append(list.get(), row.get()) == 0);
    }
    return list.release();
}

// The name of a routine of BLAS or LAPACK as some library spells it; most names that an extension module asks for are Python's.
bool may_be_blas(std::string_view name) {
    if (name.size() < 4 || name[0] == '_') return false;
    return name.back() == '_' || name.substr(0, 6) == "cblas_" || name.substr(0, 12) == "scipy_cblas_";
}

class Tables {
  public:
    Tables(uintptr_t base, uintptr_t dynamic) : base_(base) {
        for (const ElfW(Dyn) *d = reinterpret_cast<const ElfW(Dyn) *>(dynamic); d->d_tag != DT_NULL; ++d) {
            switch (d->d_tag) {
                case DT_SYMTAB: symbols_ = at<const ElfW(Sym)>(d->d_un.d_ptr); break;
                case DT_STRTAB: strings_ = at<const char>(d->d_un.d_ptr); break;
                case DT_JMPREL: calls_ = at<const ElfW(Rela)>(d->d_un.d_ptr); break;
                case DT_PLTRELSZ: calls_size_ = d->d_un.d_val; break;
                case DT_RELA: data_ = at<const ElfW(Rela)>(d->d_un.d_ptr); break;
                case DT_RELASZ: data_size_ = d->d_un.d_val; break;
                default: break;
            }
        }
    }

    PyObject *slots() const {
        Ref list(checked(PyList_New(0)));
        if (symbols_ && strings_) {
            add(list.get(), calls_, calls_size_);
            // Some linkers count the calls' relocations among the others as well.
            add(list.get(), data_, data_size_);
        }
        return list.release();
    }

  private:
    // glibc has made addresses of these, but for objects whose dynamic section is not writable.
    template <class T>
    T *at(uintptr_t value) const {
        return reinterpret_cast<T *>(value < base_ ? value + base_ : value);
    }

    void add(PyObject *list, const ElfW(Rela) *first, size_t size) const {
        if (!first) return;
        for (const ElfW(Rela) *r = first; r != first + size / sizeof(*r); ++r) {
            if (first == data_ && calls_ && r >= calls_ && r < calls_ + calls_size_ / sizeof(*r)) continue;
            const uint32_t kind = ELF64_R_TYPE(r->r_info);
            if ((kind != kJumpSlot && kind != kGlobal && kind != kAbsolute) || r->r_addend) continue;
            const ElfW(Sym) &symbol = symbols_[ELF64_R_SYM(r->r_info)];
            if (symbol.st_shndx != SHN_UNDEF) continue;
            const char *name = strings_ + symbol.st_name;
            if (!may_be_blas(name)) continue;
            uintptr_t *slot = reinterpret_cast<uintptr_t *>(base_ + r->r_offset);
            const uintptr_t value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
            if (!value) continue;
            Ref row(checked(Py_BuildValue("(KssK)", (unsigned long long)slot, name,
                                          kind == kJumpSlot ? "JUMP_SLOT" : kind == kGlobal ? "GLOB_DAT" : "R_64", (unsigned long long)value)));
            checked(PyList_Append(list, row.get()) == 0);
        }
    }

    uintptr_t base_;
    const ElfW(Sym) *symbols_ = nullptr;
    const char *strings_ = nullptr;
    const ElfW(Rela) *calls_ = nullptr, *data_ = nullptr;
    size_t calls_size_ = 0, data_size_ = 0;
};

PyObject *slots(void *base, void *dynamic) {
    return Tables(reinterpret_cast<uintptr_t>(base), reinterpret_cast<uintptr_t>(dynamic)).slots();
}

const char *text(PyObject *value) { return checked(PyUnicode_AsUTF8(value)); }

// The functions that an object which is loaded already calls by these names: 0 for one that nobody has.
PyObject *resolve(PyObject *path, PyObject *names) {
    Ref file(checked(PyUnicode_EncodeFSDefault(path)));
    void *handle = dlopen(PyBytes_AsString(file.get()), RTLD_NOLOAD | RTLD_LAZY);
    if (!handle) throw python_error(PyExc_OSError, "%s is not loaded", PyBytes_AsString(file.get()));
    struct Closer {
        void *handle;
        ~Closer() { dlclose(handle); }
    } closer{handle};
    Ref wanted(checked(PySequence_Fast(names, "names are a sequence")));
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(wanted.get());
    Ref list(checked(PyList_New(count)));
    for (Py_ssize_t i = 0; i < count; ++i) {
        void *address = dlsym(handle, text(PySequence_Fast_GET_ITEM(wanted.get(), i)));
        PyList_SET_ITEM(list.get(), i, checked(PyLong_FromVoidPtr(address)));
    }
    return list.release();
}

// The file that an address lies in, "" if in none.
PyObject *file_of(void *address) {
    Dl_info info;
    return checked(PyUnicode_DecodeFSDefault(dladdr(address, &info) && info.dli_fname ? info.dli_fname : ""));
}

void *read(void *slot) { return __atomic_load_n(static_cast<void **>(slot), __ATOMIC_ACQUIRE); }

struct Change {
    uintptr_t *slot;
    uintptr_t expected, value;
};

// The protection of the pages in which slots lie that may not be written to.
std::map<uintptr_t, int> unwritable(const std::vector<Change> &changes, uintptr_t page) {
    std::map<uintptr_t, int> pages;
    for (const Change &c : changes) pages.emplace(reinterpret_cast<uintptr_t>(c.slot) & ~(page - 1), -1);
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) throw python_error(PyExc_OSError, "/proc/self/maps cannot be read: %s", strerror(errno));
    char *line = nullptr;
    size_t capacity = 0;
    while (getline(&line, &capacity, maps) > 0) {
        unsigned long start, end;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, mode) != 3) continue;
        const int protection = (mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) | (mode[2] == 'x' ? PROT_EXEC : 0);
        for (auto p = pages.lower_bound(start); p != pages.end() && p->first < end; ++p) p->second = protection;
    }
    free(line);
    fclose(maps);
    for (auto p = pages.begin(); p != pages.end();) {
        if (p->second < 0) throw python_error(PyExc_OSError, "an address to be written to, %p, is not mapped", (void *)p->first);
        if (p->second & PROT_WRITE) p = pages.erase(p);
        else ++p;
    }
    return pages;
}

// Writes all the addresses, or none: -1, or the index of the first slot that does not hold what was expected.
//
// A store of eight aligned bytes is one store: another thread that calls through the slot meanwhile calls the one function or the
// other. Pages that are read-only (RELRO) are made writable for this, and read-only again.
Py_ssize_t write(PyObject *rows) {
    std::vector<Change> changes;
    Ref list(checked(PySequence_Fast(rows, "changes are a sequence")));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
        unsigned long long slot, expected, value;
        checked(PyArg_ParseTuple(PySequence_Fast_GET_ITEM(list.get(), i), "KKK", &slot, &expected, &value) != 0);
        if (!slot || slot % sizeof(uintptr_t) || !value) throw python_error(PyExc_ValueError, "change %zd is not one of an address", i);
        changes.push_back({reinterpret_cast<uintptr_t *>(slot), uintptr_t(expected), uintptr_t(value)});
    }
    for (size_t i = 0; i < changes.size(); ++i)
        if (__atomic_load_n(changes[i].slot, __ATOMIC_ACQUIRE) != changes[i].expected) return Py_ssize_t(i);
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const std::map<uintptr_t, int> pages = unwritable(changes, page);
    for (auto p = pages.begin(); p != pages.end(); ++p) {
        if (mprotect(reinterpret_cast<void *>(p->first), page, p->second | PROT_WRITE) == 0) continue;
        const int error = errno;
        for (auto done = pages.begin(); done != p; ++done) mprotect(reinterpret_cast<void *>(done->first), page, done->second);
        throw python_error(PyExc_PermissionError, "the system does not let this process write to %p: %s", (void *)p->first, strerror(error));
    }
    for (const Change &c : changes) __atomic_store_n(c.slot, c.value, __ATOMIC_RELEASE);
    for (const auto &[start, protection] : pages) mprotect(reinterpret_cast<void *>(start), page, protection);
    return -1;
}

PyMethodDef functions[] = {
    function<objects>("objects", "Loaded objects: path, base address, address of the dynamic section, first address, end."),
    function<slots>("slots", "Slots of an object that may be BLAS or LAPACK: address, name, kind of relocation, value."),
    function<resolve>("resolve", "Addresses of the functions that a loaded object finds by these names."),
    function<file_of>("file_of", "The file that an address lies in."),
    function<read>("read", "The address in a slot."),
    function<write>("write", "Write (slot, expected, new) addresses, all or none; the index of one that differs, or -1."),
    {}};

}  // namespace

int add_loaded_objects(PyObject *module) { return PyModule_AddFunctions(module, functions); }

}  // namespace backline

#else

namespace backline {
int add_loaded_objects(PyObject *) { return 0; }
}  // namespace backline

#endif
