/* CUDA without a device. Memory of a device is memory of the host, streams do their work at once, events are moments of the
 * host's clock. CuPy's runtime module has NVIDIA's runtime inside it, so its functions are replaced one by one: `hollow_<name>`
 * here has the C signature of `cupy_backends.cuda.api.runtime.<name>`. The driver is this library itself, by its name
 * libcuda.so.1. A kernel is looked for in the library that its module names, if it names one; else its launch is only counted. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define DEVICES 2
#define ROOM ((size_t)80 << 30)
typedef intptr_t P;

static __thread int device;
static PyObject *(*raise_status)(int, int); /* CuPy's own check_status */
static PyObject *(*properties)(int), *(*attributes)(P, int);
static size_t used[DEVICES];
static int failing, fail_after; /* a status, and how many calls that can fail go well before it */
static long launches, waits;

/* What the tests ask and set. */
void hollow_begin(void *check, void *told, void *of) { raise_status = check; properties = told; attributes = of; }
void hollow_fail(int status, int after) { failing = status; fail_after = after; }
long hollow_launches(void) { return launches; }
long hollow_waits(void) { return waits; }
size_t hollow_used(int which) { return used[which]; }

static int refused(void) {
    if (!failing || fail_after-- > 0) return 0;
    PyObject *none = raise_status(failing, 0);
    Py_XDECREF(none);
    if (failing != 700) failing = 0; /* an illegal address stays: the device is lost */
    return PyErr_Occurred() != NULL;
}
static PyObject *done(void) { return refused() ? NULL : Py_NewRef(Py_None); }

/* Devices */
int hollow_getDevice(int s) { return device; }
int hollow_getDeviceCount(int s) { return DEVICES; }
int hollow_driverGetVersion(int s) { return 13000; }
int hollow_deviceCanAccessPeer(int a, int b, int s) { return a != b; }
PyObject *hollow_deviceEnablePeerAccess(int peer, int s) { return done(); }
PyObject *hollow__deviceEnsurePeerAccess(int peer, int s) { return done(); }
PyObject *hollow__ensure_context(void) { return done(); }
PyObject *hollow_setDevice(int which, int s) {
    if (which < 0 || which >= DEVICES) return raise_status(101, 0);
    device = which;
    return done();
}
PyObject *hollow_getDeviceProperties(int which, int s) { return which < 0 || which >= DEVICES ? raise_status(101, 0) : properties(which); }
int hollow_deviceGetAttribute(int attribute, int which, int s) {
    switch (attribute) {
    case 1: return 1024;             /* threads of a block */
    case 2: case 3: return 1024;     /* its shape */
    case 4: return 64;
    case 5: return 2147483647;       /* blocks of a grid */
    case 6: case 7: return 65535;
    case 8: return 49152;            /* shared memory of a block */
    case 10: return 32;
    case 16: return 132;             /* multiprocessors */
    case 39: return 2048;            /* threads of each */
    case 75: return 9;               /* compute capability */
    case 76: return 0;
    case 81: return 233472;
    case 97: return 232448;
    }
    return 0;
}
PyObject *hollow_deviceSynchronize(int s) { waits++; return done(); }
PyObject *hollow_memGetInfo(int s) { return Py_BuildValue("(nn)", (Py_ssize_t)(ROOM - used[device]), (Py_ssize_t)ROOM); }

/* Memory: what is new has bits that are a NaN in every floating dtype. The 256 bytes before it say whose it is and how long. */
struct block { struct block *before, *after; size_t size; int device; uint32_t magic; };
static struct block first = {&first, &first};
static struct block *holding(P p) {
    for (struct block *b = first.after; b != &first; b = b->after)
        if (p >= (P)b + 256 && p <= (P)b + 256 + (P)b->size) return b;
    return NULL;
}
int hollow_pointerGetMemoryType(P p, int s) { return holding(p) ? 2 : 0; }
PyObject *hollow_pointerGetAttributes(P p, int s) { return attributes(p, holding(p) ? holding(p)->device : -2); }
static P alloc(size_t size) {
    if (refused()) return 0;
    if (used[device] + size > ROOM) { raise_status(2, 0); return 0; }
    char *memory = aligned_alloc(512, (size + 512 + 511) / 512 * 512);
    if (!memory) { raise_status(2, 0); return 0; }
    struct block *of = (struct block *)(memory + 256);
    *of = (struct block){&first, first.after, size, device, 0xb10cb10c};
    first.after = first.after->before = of;
    used[device] += size;
    memset(memory + 512, 0xff, size);
    return (P)(memory + 512);
}
static PyObject *release(P p) {
    if (!p) return done();
    struct block *of = (struct block *)(p - 256);
    if (of->magic != 0xb10cb10c) return raise_status(1, 0);
    of->magic = 0;
    of->before->after = of->after;
    of->after->before = of->before;
    used[of->device] -= of->size;
    free((void *)(p - 512));
    Py_RETURN_NONE;
}
P hollow_malloc(size_t n, int s) { return alloc(n); }
P hollow_mallocAsync(size_t n, P stream, int s) { return alloc(n); }
P hollow_hostAlloc(size_t n, unsigned flags, int s) { return (P)malloc(n); }
PyObject *hollow_free(P p, int s) { return release(p); }
PyObject *hollow_freeAsync(P p, P stream, int s) { return release(p); }
PyObject *hollow_freeHost(P p, int s) { free((void *)p); Py_RETURN_NONE; }
static PyObject *copy(P to, P from, size_t n) { memmove((void *)to, (void *)from, n); return done(); }
PyObject *hollow_memcpy(P to, P from, size_t n, int kind, int s) { return copy(to, from, n); }
PyObject *hollow_memcpyAsync(P to, P from, size_t n, int kind, P stream, int s) { return copy(to, from, n); }
PyObject *hollow_memcpyPeer(P to, int a, P from, int b, size_t n, int s) { return copy(to, from, n); }
PyObject *hollow_memcpyPeerAsync(P to, int a, P from, int b, size_t n, P stream, int s) { return copy(to, from, n); }
PyObject *hollow_memset(P to, int value, size_t n, int s) { memset((void *)to, value, n); return done(); }
PyObject *hollow_memsetAsync(P to, int value, size_t n, P stream, int s) { memset((void *)to, value, n); return done(); }

/* Streams and events */
static P number(void) { return (P)malloc(sizeof(double)); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec; }
P hollow_streamCreate(int s) { return number(); }
P hollow_streamCreateWithFlags(unsigned flags, int s) { return number(); }
P hollow_streamCreateWithPriority(unsigned flags, int priority, int s) { return number(); }
/* What is recorded is done at once, so a graph has nothing left to do. */
static P capturing;
PyObject *hollow_streamBeginCapture(P stream, int s, void *more) { capturing = stream; return done(); }
P hollow_streamEndCapture(P stream, int s) { capturing = 0; return number(); }
int hollow_streamIsCapturing(P stream, int s) { return capturing && capturing == stream; }
P hollow_graphInstantiate(P graph, int s) { return number(); }
PyObject *hollow_graphLaunch(P graph, P stream, int s) { return done(); }
PyObject *hollow_graphDestroy(P graph, int s) { free((void *)graph); Py_RETURN_NONE; }
PyObject *hollow_graphExecDestroy(P graph, int s) { free((void *)graph); Py_RETURN_NONE; }
PyObject *hollow_streamDestroy(P stream, int s) { free((void *)stream); Py_RETURN_NONE; }
PyObject *hollow_streamQuery(P stream, int s) { return PyLong_FromLong(0); }
PyObject *hollow_streamSynchronize(P stream, int s) { waits++; return done(); }
PyObject *hollow_streamWaitEvent(P stream, P event, int s, void *more) { return done(); }
P hollow_eventCreate(int s) { return number(); }
P hollow_eventCreateWithFlags(unsigned flags, int s) { return number(); }
PyObject *hollow_eventDestroy(P event, int s) { free((void *)event); Py_RETURN_NONE; }
PyObject *hollow_eventQuery(P event, int s) { return PyLong_FromLong(0); }
PyObject *hollow_eventRecord(P event, P stream, int s) { *(double *)event = now(); return done(); }
PyObject *hollow_eventSynchronize(P event, int s) { waits++; return done(); }
float hollow_eventElapsedTime(P begin, P end, int s) { return (float)(*(double *)end - *(double *)begin); }

/* The driver: 0 is success. A module's image is one of NVRTC's, with the path of a library of the host behind a mark, or without. */
static pthread_mutex_t one_kernel = PTHREAD_MUTEX_INITIALIZER;
struct size { unsigned x, y, z; };
struct function { void (*run)(struct size, struct size, void **); char name[256]; int file, allowed; };
static int (*read_file)(const char *), (*played)(int, const char *, unsigned, unsigned, unsigned, int, void **);
void hollow_play(void *reads, void *plays) { read_file = reads; played = plays; }
struct file { int mark, number; };
static const char MARK[] = "hollow:";

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGet(int *found, int which) { *found = which; return which < 0 || which >= DEVICES ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int which) { *value = hollow_deviceGetAttribute(attribute, which, 0); return 0; }
int cuDeviceGetName(char *name, int room, int which) { snprintf(name, room, "NVIDIA H100 80GB HBM3"); return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)(intptr_t)(device + 1); return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxGetDevice(int *which) { *which = device; return 0; }
int cuModuleLoadData(void **module, const char *image) {
    *module = strncmp(image, MARK, sizeof MARK - 1) ? (void *)1 : dlopen(image + sizeof MARK - 1, RTLD_NOW | RTLD_LOCAL);
    return *module ? 0 : 218;
}
int cuModuleLoad(struct file **module, const char *path) {
    struct file *made = malloc(sizeof *made);
    *made = (struct file){0xf11e, read_file ? read_file(path) : 0};
    *module = made;
    return made->number ? 0 : 200;
}
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **found, void *module, const char *name) {
    struct function *made = calloc(1, sizeof *made);
    char full[512];
    snprintf(full, sizeof full, "hollow_%s", name);
    snprintf(made->name, sizeof made->name, "%s", name);
    *found = made;
    made->allowed = 48 << 10;
    if (module == (void *)1) return 0;
    if (((struct file *)module)->mark == 0xf11e) { made->file = ((struct file *)module)->number; return 0; }
    made->run = dlsym(module, full);
    return made->run ? 0 : 500;
}
int cuModuleGetGlobal_v2(void **found, size_t *size, void *module, const char *name) { return 500; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = attribute ? 0 : 1024; return 0; }
int cuFuncSetAttribute(struct function *f, int attribute, int value) {
    if (attribute == 8) f->allowed = value;
    return value > 232448;
}
int cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **more) {
    __sync_fetch_and_add(&launches, 1);
    if (!gx || !gy || !gz || !bx || !by || !bz || (size_t)bx * by * bz > 1024 || gy > 65535 || gz > 65535 || shared > 232448) return 1;
    if (shared > (unsigned)f->allowed) return 1;
    if (f->file) return played(f->file, f->name, gx, bx, shared, f->allowed, arguments);
    if (!f->run) return 0;
    pthread_mutex_lock(&one_kernel);
    f->run((struct size){gx, gy, gz}, (struct size){bx, by, bz}, arguments);
    pthread_mutex_unlock(&one_kernel);
    return 0;
}
int cuGetErrorName(int status, const char **text) { *text = "CUDA_ERROR_OF_THE_STAND_IN"; return 0; }
int cuGetErrorString(int status, const char **text) { *text = "an error of the stand-in"; return 0; }
int cuGetExportTable(const void **table, const void *id) { *table = NULL; return 500; } /* NVRTC asks for one, and does without */
