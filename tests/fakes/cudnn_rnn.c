/* cuDNN as far as recurrent networks, on the host: descriptors and arguments are checked, numbers computed in double precision by the
 * formulas of its documentation. With -DTRUE_HEADER it is compiled against NVIDIA's own header, so that the compiler compares the
 * signatures. Gates lie side by side in the weights, matrices first, as in cuDNN; `standin_scatter` lets each gate lie by itself. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef TRUE_HEADER
#include <cudnn.h>
typedef cudnnRNNDataLayout_t layout_t; typedef cudnnForwardMode_t forward_t; typedef cudnnWgradMode_t wgrad_t;
#else
typedef int cudnnStatus_t, cudnnDataType_t, cudnnRNNAlgo_t, cudnnRNNMode_t, cudnnRNNBiasMode_t, cudnnDirectionMode_t, cudnnRNNInputMode_t,
    cudnnMathType_t, layout_t, forward_t, wgrad_t;
typedef struct cudnnContext *cudnnHandle_t; typedef void *cudaStream_t; typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t; typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;
#endif
enum { BAD = 2000, UNSUPPORTED = 3000 };
enum { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, BFLOAT16 = 9 };

struct cudnnContext { int magic; void *stream; };
struct cudnnTensorStruct { int magic, type, count, dims[8], strides[8]; };
struct cudnnDropoutStruct { int magic, set; float rate; uint64_t *states; size_t size; };
struct cudnnRNNStruct { int magic, algo, mode, bias, directions, type, compute, math, in, hidden, layers; unsigned flags; struct cudnnDropoutStruct *dropout; };
struct cudnnRNNDataStruct { int magic, type, layout, steps, batch, size, *lengths, fills; unsigned char fill[8]; };
enum { HANDLE = 0x4a11, TENSOR = 0x7e50, DROPOUT = 0xd409, NETWORK = 0x4e37, SEQUENCES = 0xda7a };

static __thread char said[256];
static int live, scatter, seedings, last_algo, last_math, last_compute, last_flags;
static void *last_stream;
int standin_live(void) { return live; }
int standin_seedings(void) { return seedings; }
int standin_algo(void) { return last_algo; }
int standin_math(void) { return last_math; }
int standin_compute(void) { return last_compute; }
void *standin_stream(void) { return last_stream; }
void standin_scatter(int on) { scatter = on; }

static cudnnStatus_t no(int status, const char *why) { snprintf(said, sizeof said, "%s", why); return (cudnnStatus_t)status; }
#define NEED(condition) do { if (!(condition)) return no(BAD, #condition); } while (0)

const char *cudnnGetErrorString(cudnnStatus_t status) { return (int)status == BAD ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_NOT_SUPPORTED"; }
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "%s", said); said[0] = 0; }

static void *made(int magic, size_t size) { int *at = calloc(1, size); *at = magic; live++; return at; }
#define LIFE(Name, Type, MAGIC) \
    cudnnStatus_t cudnnCreate##Name##Descriptor(Type *to) { NEED(to); *to = made(MAGIC, sizeof **to); return 0; } \
    cudnnStatus_t cudnnDestroy##Name##Descriptor(Type of) { NEED(of && of->magic == MAGIC); of->magic = 0; live--; free(of); return 0; }
LIFE(Tensor, cudnnTensorDescriptor_t, TENSOR)
LIFE(Dropout, cudnnDropoutDescriptor_t, DROPOUT)
LIFE(RNN, cudnnRNNDescriptor_t, NETWORK)
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *to) { NEED(to); *to = made(SEQUENCES, sizeof **to); return 0; }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t of) {
    NEED(of && of->magic == SEQUENCES);
    free(of->lengths);
    of->magic = 0;
    live--;
    free(of);
    return 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *to) { NEED(to); *to = made(HANDLE, sizeof **to); live--; return 0; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream) { NEED(h && h->magic == HANDLE); h->stream = stream; return 0; }

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int count, const int dims[], const int strides[]) {
    NEED(t && t->magic == TENSOR);
    NEED(count >= 3 && count <= 8);
    t->type = type;
    t->count = count;
    for (int i = 0; i < count; i++) { NEED(dims[i] > 0); t->dims[i] = dims[i]; t->strides[i] = strides[i]; }
    return 0;
}

/* Dropout: the first word of the states is the count of what was drawn, mixed with the seed. */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t h, size_t *size) { NEED(h && h->magic == HANDLE); *size = 1024; return 0; }
static cudnnStatus_t dropout(cudnnDropoutDescriptor_t d, cudnnHandle_t h, float rate, void *states, size_t size) {
    NEED(d && d->magic == DROPOUT);
    NEED(h && h->magic == HANDLE);
    NEED(rate >= 0 && rate < 1);
    NEED(rate == 0 || (states && size == 1024));
    d->set = 1;
    d->rate = rate;
    d->states = states;
    return 0;
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t h, float rate, void *states, size_t size, unsigned long long seed) {
    cudnnStatus_t status = dropout(d, h, rate, states, size);
    if (!status && states) { seedings++; memset(states, 0, size); *(uint64_t *)states = seed * 0x9e3779b97f4a7c15ull + 1; }
    return status;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t h, float rate, void *states, size_t size, unsigned long long seed) {
    NEED(rate > 0 && states && *(uint64_t *)states);
    return dropout(d, h, rate, states, size);
}
static double drawn(uint64_t count) {
    uint64_t z = count + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

/* The network */
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t r, cudnnRNNAlgo_t algo, cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t directions, cudnnRNNInputMode_t input, cudnnDataType_t type, cudnnDataType_t compute,
                                       cudnnMathType_t math, int32_t in, int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t d, uint32_t flags) {
    NEED(r && r->magic == NETWORK);
    NEED(d && d->magic == DROPOUT && d->set);
    NEED((int)algo >= 0 && (int)algo < 4 && (int)mode >= 0 && (int)mode < 4 && (int)directions >= 0 && (int)directions < 2);
    NEED((int)bias == 0 || (int)bias == 2);
    NEED((int)input == 0);
    NEED((int)compute == ((int)type == FLOAT64 ? FLOAT64 : FLOAT32));
    NEED((int)type == FLOAT32 ? (int)math == 0 || (int)math == 3 : (int)type == FLOAT64 ? (int)math == 0 : (int)math == 1);
    NEED(in > 0 && hidden > 0 && projected == hidden && layers > 0);
    NEED(flags == 1);
    if ((int)algo && ((int)type == FLOAT64 || !(int)bias)) return no(UNSUPPORTED, "persistent kernels of float64, or without biases");
    r->algo = last_algo = algo; r->mode = mode; r->bias = bias; r->directions = directions + 1; r->type = type; r->compute = last_compute = compute;
    r->math = last_math = math; r->in = in; r->hidden = hidden; r->layers = layers; r->flags = last_flags = flags; r->dropout = d;
    return 0;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t s, cudnnDataType_t type, layout_t layout, int steps, int batch, int size,
                                        const int lengths[], void *fill) {
    NEED(s && s->magic == SEQUENCES);
    NEED(steps > 0 && batch > 0 && size > 0 && lengths);
    NEED((int)layout == 0 || (int)layout == 2);
    for (int n = 0; n < batch; n++) NEED(lengths[n] > 0 && lengths[n] <= steps);
    free(s->lengths);
    s->type = type; s->layout = layout; s->steps = steps; s->batch = batch; s->size = size; s->fills = fill != NULL;
    s->lengths = malloc(sizeof(int) * batch);
    memcpy(s->lengths, lengths, sizeof(int) * batch);
    if (fill) memcpy(s->fill, fill, (int)type == FLOAT64 ? 8 : (int)type == FLOAT32 ? 4 : 2);
    return 0;
}

static int width(int type) { return type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2; }
static int gates(const struct cudnnRNNStruct *r) { return r->mode == 2 ? 4 : r->mode == 3 ? 3 : 1; }
static int reads(const struct cudnnRNNStruct *r, int layer) { return layer ? r->directions * r->hidden : r->in; }
enum { GAP = 5 };
/* The element at which a matrix (or bias) begins: of all, `which` 0 is that of the input's first gate, gates() that of the state's. */
static int64_t place(const struct cudnnRNNStruct *r, int cell, int which, int bias) {
    int g = gates(r), h = r->hidden, all = r->layers * r->directions;
    int64_t at = 0;
    for (int kind = 0; kind < (r->bias ? 2 : 1); kind++)
        for (int k = 0; k < all; k++)
            for (int i = 0; i < 2 * g; i++) {
                int turned = scatter ? i / g * g + (g - 1 - i % g) : i; /* gates the other way round, with gaps */
                if (scatter) at += GAP;
                if (kind == bias && k == cell && turned == which) return at;
                at += kind ? h : (int64_t)h * (turned < g ? reads(r, k / r->directions) : h);
            }
    return at;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t h, cudnnRNNDescriptor_t r, size_t *size) {
    NEED(h && h->magic == HANDLE && r && r->magic == NETWORK);
    *size = (size_t)place(r, -1, 0, 0) * width(r->type);
    return 0;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t h, cudnnRNNDescriptor_t r, int32_t cell, size_t size, const void *weights, int32_t which,
                                      cudnnTensorDescriptor_t m, void **matrix, cudnnTensorDescriptor_t b, void **bias) {
    NEED(h && h->magic == HANDLE && r && r->magic == NETWORK);
    NEED(weights && size == (size_t)place(r, -1, 0, 0) * width(r->type));
    NEED(m && m->magic == TENSOR && b && b->magic == TENSOR && matrix && bias);
    NEED(cell >= 0 && cell < r->layers * r->directions && which >= 0 && which < 2 * gates(r));
    *matrix = (char *)weights + place(r, cell, which, 0) * width(r->type);
    *bias = r->bias ? (char *)weights + place(r, cell, which, 1) * width(r->type) : NULL;
    return 0;
}

static double get(const void *p, int type, int64_t i) {
    uint32_t bits;
    float wide;
    switch (type) {
    case FLOAT32: return ((const float *)p)[i];
    case FLOAT64: return ((const double *)p)[i];
    case FLOAT16: return (float)((const _Float16 *)p)[i];
    }
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&wide, &bits, 4);
    return wide;
}
static void put(void *p, int type, int64_t i, double v) {
    float wide = (float)v;
    uint32_t bits;
    switch (type) {
    case FLOAT32: ((float *)p)[i] = wide; return;
    case FLOAT64: ((double *)p)[i] = v; return;
    case FLOAT16: ((_Float16 *)p)[i] = (_Float16)wide; return;
    }
    memcpy(&bits, &wide, 4);
    ((uint16_t *)p)[i] = (uint16_t)(isnan(v) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* What training keeps: for each cell, step and sequence 12 rows of the hidden size, then what each layer reads, then the dropout's scales. */
enum { GATES = 0, BEFORE = 4, MEMORY = 5, SIZE = 6, BY_INPUT = 7, ROWS = 16 };
struct kept { const void *x, *y, *hx; int forward, data, T, B; double *state, *input, *scale, *output; size_t doubles; };
static size_t doubles(const struct cudnnRNNStruct *r, int T, int B) {
    int wide = r->in > r->directions * r->hidden ? r->in : r->directions * r->hidden;
    size_t cells = (size_t)r->layers * r->directions;
    return cells * T * B * ROWS * r->hidden + (size_t)r->layers * T * B * wide + 2 * (size_t)r->layers * T * B * r->directions * r->hidden;
}
static void lay(struct kept *k, double *from, const struct cudnnRNNStruct *r, int T, int B) {
    int wide = r->in > r->directions * r->hidden ? r->in : r->directions * r->hidden;
    k->T = T; k->B = B;
    k->state = from;
    k->input = k->state + (size_t)r->layers * r->directions * T * B * ROWS * r->hidden;
    k->scale = k->input + (size_t)r->layers * T * B * wide;
    k->output = k->scale + (size_t)r->layers * T * B * r->directions * r->hidden;
}
static double *row(const struct kept *k, const struct cudnnRNNStruct *r, int cell, int t, int n, int which) {
    return k->state + ((((size_t)cell * k->T + t) * k->B + n) * ROWS + which) * r->hidden;
}
static double *read_by(const struct kept *k, const struct cudnnRNNStruct *r, int layer, int t, int n) {
    int wide = r->in > r->directions * r->hidden ? r->in : r->directions * r->hidden;
    return k->input + (((size_t)layer * k->T + t) * k->B + n) * wide;
}
static double *of_layer(const struct kept *k, const struct cudnnRNNStruct *r, double *of, int layer, int t, int n) {
    return of + (((size_t)layer * k->T + t) * k->B + n) * r->directions * r->hidden;
}
static int64_t element(const struct cudnnRNNDataStruct *s, int t, int n) {
    return (s->layout == 2 ? (int64_t)n * s->steps + t : (int64_t)t * s->batch + n) * s->size;
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t h, cudnnRNNDescriptor_t r, forward_t mode, cudnnRNNDataDescriptor_t x, size_t *work, size_t *reserve) {
    NEED(h && h->magic == HANDLE && r && r->magic == NETWORK && x && x->magic == SEQUENCES);
    NEED(work && reserve);
    NEED(x->size == r->in && x->type == r->type);
    *work = 4096;
    *reserve = (int)mode ? sizeof(struct kept) + sizeof(double) * doubles(r, x->steps, x->batch) : 0;
    return 0;
}

static cudnnStatus_t agree(cudnnHandle_t h, cudnnRNNDescriptor_t r, const int32_t *lengths, cudnnRNNDataDescriptor_t x, cudnnRNNDataDescriptor_t y,
                           cudnnTensorDescriptor_t hd, cudnnTensorDescriptor_t cd, size_t weight_size, const void *weights, size_t work_size, void *work) {
    NEED(h && h->magic == HANDLE && r && r->magic == NETWORK && x && x->magic == SEQUENCES && y && y->magic == SEQUENCES);
    NEED(!lengths); /* cuDNN makes its own copy since 8.9.1 */
    NEED(x->type == r->type && y->type == r->type && x->size == r->in && y->size == r->directions * r->hidden);
    NEED(x->steps == y->steps && x->batch == y->batch && x->layout == y->layout && !memcmp(x->lengths, y->lengths, sizeof(int) * x->batch));
    NEED(hd && hd->magic == TENSOR && hd->type == r->type && hd->count == 3);
    NEED(hd->dims[0] == r->layers * r->directions && hd->dims[1] == x->batch && hd->dims[2] == r->hidden);
    NEED(hd->strides[0] == x->batch * r->hidden && hd->strides[1] == r->hidden && hd->strides[2] == 1);
    NEED(!cd || (r->mode == 2 && cd->magic == TENSOR && !memcmp(cd->dims, hd->dims, sizeof hd->dims)));
    NEED(weights && weight_size == (size_t)place(r, -1, 0, 0) * width(r->type));
    NEED(work && work_size == 4096);
    for (int n = 0; r->algo && n < x->batch; n++)
        if (x->lengths[n] != x->steps || x->layout) return no(UNSUPPORTED, "persistent kernels of sequences of several lengths");
    memset(work, 0xff, work_size);
    last_stream = h->stream;
    return 0;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t h, cudnnRNNDescriptor_t r, forward_t mode, const int32_t lengths[], cudnnRNNDataDescriptor_t xd,
                              const void *x, cudnnRNNDataDescriptor_t yd, void *y, cudnnTensorDescriptor_t hd, const void *hx, void *hy,
                              cudnnTensorDescriptor_t cd, const void *cx, void *cy, size_t weight_size, const void *weights, size_t work_size,
                              void *work, size_t reserve_size, void *reserve) {
    cudnnStatus_t status = agree(h, r, lengths, xd, yd, hd, cd, weight_size, weights, work_size, work);
    if (status) return status;
    NEED(x && y && hx && hy);
    NEED(r->mode == 2 ? cd && cx && cy : !cx && !cy);
    NEED(yd->fills);
    int T = xd->steps, B = xd->batch, H = r->hidden, D = r->directions, g = gates(r), type = r->type;
    double *own = NULL;
    struct kept held = {0}, *k = &held;
    if ((int)mode) {
        NEED(reserve && reserve_size == sizeof *k + sizeof(double) * doubles(r, T, B));
        k = reserve;
        memset(k, 0, sizeof *k);
        lay(k, (double *)(k + 1), r, T, B);
    } else {
        NEED(!reserve && !reserve_size);
        lay(k, own = malloc(sizeof(double) * doubles(r, T, B)), r, T, B);
    }
    for (int t = 0; t < T; t++)
        for (int n = 0; n < B; n++)
            for (int j = 0; j < r->in && t < xd->lengths[n]; j++) read_by(k, r, 0, t, n)[j] = get(x, type, element(xd, t, n) + j);
    for (int layer = 0; layer < r->layers; layer++) {
        int in = reads(r, layer);
        for (int d = 0; d < D; d++) {
            int cell = layer * D + d;
            for (int n = 0; n < B; n++) {
                double hidden[H], memory[H];
                for (int j = 0; j < H; j++) {
                    int64_t at = ((int64_t)cell * B + n) * H + j;
                    hidden[j] = get(hx, type, at);
                    memory[j] = r->mode == 2 ? get(cx, type, at) : 0;
                }
                for (int step = 0; step < xd->lengths[n]; step++) {
                    int t = d ? xd->lengths[n] - 1 - step : step;
                    double *from = read_by(k, r, layer, t, n), new[H];
                    memcpy(row(k, r, cell, t, n, BEFORE), hidden, sizeof hidden);
                    memcpy(row(k, r, cell, t, n, MEMORY), memory, sizeof memory);
                    for (int j = 0; j < H; j++) {
                        double a[4], b[4];
                        for (int i = 0; i < g; i++) {
                            a[i] = r->bias ? get(weights, type, place(r, cell, i, 1) + j) : 0;
                            b[i] = r->bias ? get(weights, type, place(r, cell, g + i, 1) + j) : 0;
                            int64_t w = place(r, cell, i, 0) + (int64_t)j * in, u = place(r, cell, g + i, 0) + (int64_t)j * H;
                            for (int q = 0; q < in; q++) a[i] += get(weights, type, w + q) * from[q];
                            for (int q = 0; q < H; q++) b[i] += get(weights, type, u + q) * hidden[q];
                        }
                        double *of = row(k, r, cell, t, n, GATES);
                        if (r->mode == 2) { /* input, forget, new memory, output */
                            double i = sigmoid(a[0] + b[0]), f = sigmoid(a[1] + b[1]), c = tanh(a[2] + b[2]), o = sigmoid(a[3] + b[3]);
                            memory[j] = f * memory[j] + i * c;
                            double size = tanh(memory[j]);
                            new[j] = o * size;
                            of[j] = i; of[H + j] = f; of[2 * H + j] = c; of[3 * H + j] = o;
                            row(k, r, cell, t, n, SIZE)[j] = size;
                        } else if (r->mode == 3) { /* reset, update, new memory */
                            double reset = sigmoid(a[0] + b[0]), update = sigmoid(a[1] + b[1]), fresh = tanh(a[2] + reset * b[2]);
                            new[j] = (1 - update) * fresh + update * hidden[j];
                            of[j] = reset; of[H + j] = update; of[2 * H + j] = fresh; of[3 * H + j] = b[2];
                        } else
                            new[j] = of[j] = r->mode == 1 ? tanh(a[0] + b[0]) : a[0] + b[0] > 0 ? a[0] + b[0] : 0 * (a[0] + b[0]);
                    }
                    memcpy(hidden, new, sizeof new);
                    memcpy(of_layer(k, r, k->output, layer, t, n) + d * H, new, sizeof new);
                }
                for (int j = 0; j < H; j++) {
                    int64_t at = ((int64_t)cell * B + n) * H + j;
                    put(hy, type, at, hidden[j]);
                    if (r->mode == 2) put(cy, type, at, memory[j]);
                }
            }
        }
        int drops = (int)mode && r->dropout->rate > 0 && layer + 1 < r->layers;
        for (int t = 0; t < T && layer + 1 < r->layers; t++)
            for (int n = 0; n < B; n++)
                for (int j = 0; j < D * H; j++) {
                    double scale = drops ? (drawn(r->dropout->states[0]++) < r->dropout->rate ? 0 : 1 / (1 - (double)r->dropout->rate)) : 1;
                    of_layer(k, r, k->scale, layer, t, n)[j] = scale;
                    if (t < xd->lengths[n]) read_by(k, r, layer + 1, t, n)[j] = scale * of_layer(k, r, k->output, layer, t, n)[j];
                }
    }
    for (int t = 0; t < T; t++)
        for (int n = 0; n < B; n++)
            for (int j = 0; j < D * H; j++)
                if (t < xd->lengths[n]) put(y, type, element(yd, t, n) + j, of_layer(k, r, k->output, r->layers - 1, t, n)[j]);
                else memcpy((char *)y + (element(yd, t, n) + j) * width(type), yd->fill, width(type));
    k->x = x; k->y = y; k->hx = hx; k->forward = 1;
    free(own);
    return 0;
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t h, cudnnRNNDescriptor_t r, const int32_t lengths[], cudnnRNNDataDescriptor_t yd, const void *y,
                                      const void *dy, cudnnRNNDataDescriptor_t xd, void *dx, cudnnTensorDescriptor_t hd, const void *hx,
                                      const void *dhy, void *dhx, cudnnTensorDescriptor_t cd, const void *cx, const void *dcy, void *dcx,
                                      size_t weight_size, const void *weights, size_t work_size, void *work, size_t reserve_size, void *reserve) {
    cudnnStatus_t status = agree(h, r, lengths, xd, yd, hd, cd, weight_size, weights, work_size, work);
    if (status) return status;
    NEED(y && dy && dx && hx && dhx);
    NEED(r->mode == 2 ? cd && cx && dcx : !cx && !dcy && !dcx);
    int T = xd->steps, B = xd->batch, H = r->hidden, D = r->directions, g = gates(r), type = r->type;
    NEED(reserve && reserve_size == sizeof(struct kept) + sizeof(double) * doubles(r, T, B));
    struct kept *k = reserve;
    NEED(k->forward && k->y == y && k->hx == hx);
    size_t each = (size_t)T * B * D * H;
    double *grad = calloc(each, sizeof *grad);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < B; n++)
            for (int j = 0; j < D * H && t < xd->lengths[n]; j++) grad[((size_t)t * B + n) * D * H + j] = get(dy, type, element(yd, t, n) + j);
    for (int layer = r->layers - 1; layer >= 0; layer--) {
        int in = reads(r, layer);
        double *below = calloc((size_t)T * B * in, sizeof *below);
        for (int d = 0; d < D; d++) {
            int cell = layer * D + d;
            for (int n = 0; n < B; n++) {
                double dh[H], dc[H];
                for (int j = 0; j < H; j++) {
                    int64_t at = ((int64_t)cell * B + n) * H + j;
                    dh[j] = dhy ? get(dhy, type, at) : 0;
                    dc[j] = dcy ? get(dcy, type, at) : 0;
                }
                for (int step = xd->lengths[n] - 1; step >= 0; step--) {
                    int t = d ? xd->lengths[n] - 1 - step : step;
                    double *of = row(k, r, cell, t, n, GATES), *before = row(k, r, cell, t, n, BEFORE), *change = row(k, r, cell, t, n, BY_INPUT);
                    double other[4 * H], next[H];
                    for (int j = 0; j < H; j++) {
                        double u = dh[j] + grad[((size_t)t * B + n) * D * H + d * H + j];
                        next[j] = 0;
                        if (r->mode == 2) {
                            double i = of[j], f = of[H + j], c = of[2 * H + j], o = of[3 * H + j], size = row(k, r, cell, t, n, SIZE)[j];
                            double m = dc[j] + u * o * (1 - size * size);
                            change[j] = m * c * i * (1 - i);
                            change[H + j] = m * row(k, r, cell, t, n, MEMORY)[j] * f * (1 - f);
                            change[2 * H + j] = m * i * (1 - c * c);
                            change[3 * H + j] = u * size * o * (1 - o);
                            dc[j] = m * f;
                        } else if (r->mode == 3) {
                            double reset = of[j], update = of[H + j], fresh = of[2 * H + j], share = of[3 * H + j];
                            double v = u * (1 - update) * (1 - fresh * fresh);
                            change[j] = v * share * reset * (1 - reset);
                            change[H + j] = u * (before[j] - fresh) * update * (1 - update);
                            change[2 * H + j] = v;
                            change[3 * H + j] = v * reset; /* of the new memory's share of the state */
                            next[j] = u * update;
                        } else
                            change[j] = r->mode == 1 ? u * (1 - of[j] * of[j]) : of[j] <= 0 ? 0 : u;
                    }
                    for (int i = 0; i < g; i++)
                        for (int j = 0; j < H; j++) other[i * H + j] = r->mode == 3 && i == 2 ? change[3 * H + j] : change[i * H + j];
                    for (int i = 0; i < g; i++)
                        for (int j = 0; j < H; j++) {
                            int64_t w = place(r, cell, i, 0) + (int64_t)j * in, u = place(r, cell, g + i, 0) + (int64_t)j * H;
                            for (int q = 0; q < in; q++) below[((size_t)t * B + n) * in + q] += get(weights, type, w + q) * change[i * H + j];
                            for (int q = 0; q < H; q++) next[q] += get(weights, type, u + q) * other[i * H + j];
                        }
                    memcpy(dh, next, sizeof next);
                }
                for (int j = 0; j < H; j++) {
                    int64_t at = ((int64_t)cell * B + n) * H + j;
                    put(dhx, type, at, dh[j]);
                    if (r->mode == 2) put(dcx, type, at, dc[j]);
                }
            }
        }
        if (layer)
            for (size_t i = 0; i < each; i++) grad[i] = below[i] * of_layer(k, r, k->scale, layer - 1, 0, 0)[i];
        else
            for (int t = 0; t < T; t++)
                for (int n = 0; n < B; n++)
                    for (int j = 0; j < in; j++) /* behind the end of a sequence: whatever */
                        put(dx, type, element(xd, t, n) + j, t < xd->lengths[n] ? below[((size_t)t * B + n) * in + j] : NAN);
        free(below);
    }
    free(grad);
    k->data = 1;
    return 0;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t h, cudnnRNNDescriptor_t r, wgrad_t add, const int32_t lengths[], cudnnRNNDataDescriptor_t xd,
                                         const void *x, cudnnTensorDescriptor_t hd, const void *hx, cudnnRNNDataDescriptor_t yd, const void *y,
                                         size_t weight_size, void *changes, size_t work_size, void *work, size_t reserve_size, void *reserve) {
    cudnnStatus_t status = agree(h, r, lengths, xd, yd, hd, NULL, weight_size, changes, work_size, work);
    if (status) return status;
    NEED((int)add == 0);
    int T = xd->steps, B = xd->batch, H = r->hidden, D = r->directions, g = gates(r), type = r->type;
    NEED(reserve && reserve_size == sizeof(struct kept) + sizeof(double) * doubles(r, T, B));
    struct kept *k = reserve;
    NEED(k->forward && k->data && k->x == x && k->y == y && k->hx == hx);
    for (int cell = 0; cell < r->layers * D; cell++)
        for (int which = 0; which < 2 * g; which++) {
            int i = which % g, of_state = which >= g, columns = of_state ? H : reads(r, cell / D);
            for (int j = 0; j < H; j++) {
                double sum[columns + 1];
                memset(sum, 0, sizeof sum);
                for (int n = 0; n < B; n++)
                    for (int t = 0; t < xd->lengths[n]; t++) {
                        double *change = row(k, r, cell, t, n, BY_INPUT), u = change[(of_state && r->mode == 3 && i == 2 ? 3 : i) * H + j];
                        double *from = of_state ? row(k, r, cell, t, n, BEFORE) : read_by(k, r, cell / D, t, n);
                        for (int q = 0; q < columns; q++) sum[q] += u * from[q];
                        sum[columns] += u;
                    }
                int64_t at = place(r, cell, which, 0) + (int64_t)j * columns;
                for (int q = 0; q < columns; q++) put(changes, type, at + q, get(changes, type, at + q) + sum[q]);
                at = place(r, cell, which, 1) + j;
                if (r->bias) put(changes, type, at, get(changes, type, at) + sum[columns]);
            }
        }
    k->data = 0; /* once for each time that the data's gradients are computed */
    return 0;
}
