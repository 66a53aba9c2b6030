/* A stand-in for cuBLASLt (libcublasLt): descriptors, and products without an epilogue. */
#include "standin.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* cublasStatus_t, cublasLtMatmulDescAttributes_t and cublasLtMatrixLayoutAttribute_t of cublasLt.h */
enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum {
    COMPUTE_TYPE = 0,
    SCALE_TYPE = 1,
    POINTER_MODE = 2,
    TRANSA = 3,
    TRANSB = 4,
    EPILOGUE = 7,
    A_SCALE = 17,
    B_SCALE = 18,
    D_SCALE = 20
};
enum { TYPE = 0, ORDER = 1, ROWS = 2, COLS = 3, LD = 4, BATCH = 5, STRIDE = 6 };
enum { FAST_TF32 = 77, EPILOGUE_DEFAULT = 1 };
#define ATTRIBUTES 64

/* A descriptor or a layout: its attributes as numbers. */
struct described {
    uint64_t value[ATTRIBUTES];
};

/* cublasLtMatmulHeuristicResult_t */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtGetProperty(int which, int *value) {
    int version = standin_machine()->cublas;
    int parts[] = {version / 10000, version / 100 % 100, version % 100};
    if (which < 0 || which > 2)
        return INVALID_VALUE;
    *value = parts[which];
    return SUCCESS;
}

static int set(struct described *described, int attribute, const void *data, size_t bytes) {
    if (attribute < 0 || attribute >= ATTRIBUTES || !bytes || bytes > 8)
        return INVALID_VALUE;
    described->value[attribute] = 0;
    memcpy(&described->value[attribute], data, bytes);
    return SUCCESS;
}

int cublasLtMatmulDescCreate(struct described **made, int compute, int scale) {
    *made = calloc(1, sizeof **made);
    (*made)->value[COMPUTE_TYPE] = compute, (*made)->value[SCALE_TYPE] = scale;
    (*made)->value[EPILOGUE] = EPILOGUE_DEFAULT;
    return SUCCESS;
}

int cublasLtMatrixLayoutCreate(struct described **made, int type, uint64_t rows, uint64_t columns,
                               int64_t ld) {
    *made = calloc(1, sizeof **made);
    (*made)->value[TYPE] = type, (*made)->value[ROWS] = rows, (*made)->value[COLS] = columns;
    (*made)->value[LD] = ld, (*made)->value[BATCH] = 1;
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(struct described **made) {
    *made = calloc(1, sizeof **made);
    return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(struct described *one, int attribute, const void *data, size_t bytes) {
    return set(one, attribute, data, bytes);
}
int cublasLtMatrixLayoutSetAttribute(struct described *one, int attribute, const void *data, size_t bytes) {
    return set(one, attribute, data, bytes);
}
int cublasLtMatmulPreferenceSetAttribute(struct described *one, int attribute, const void *data,
                                         size_t bytes) {
    return set(one, attribute, data, bytes);
}

static int destroy(struct described *one) {
    free(one);
    return SUCCESS;
}

int cublasLtMatmulDescDestroy(struct described *one) { return destroy(one); }
int cublasLtMatrixLayoutDestroy(struct described *one) { return destroy(one); }
int cublasLtMatmulPreferenceDestroy(struct described *one) { return destroy(one); }

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, struct heuristic *found, int *count) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *count = wanted > 0;
    if (*count)
        memset(found, 0, sizeof *found);
    return SUCCESS;
}

static struct standin_matrix matrix(const void *data, const struct described *layout, bool transposed) {
    return (struct standin_matrix){(void *)data, (cudaDataType)layout->value[TYPE],
                                   (long long)layout->value[LD], (long long)layout->value[STRIDE],
                                   transposed};
}

static double scale(const struct described *operation, int attribute) {
    const float *pointer = (const float *)operation->value[attribute];
    return pointer ? *pointer : 1;
}

int cublasLtMatmul(void *handle, const struct described *operation, const void *alpha, const void *a,
                   const struct described *a_layout, const void *b, const struct described *b_layout,
                   const void *beta, const void *c, const struct described *c_layout, void *d,
                   const struct described *d_layout, const void *algorithm, void *workspace,
                   size_t workspace_bytes, cudaStream_t stream) {
    (void)handle, (void)algorithm, (void)workspace, (void)workspace_bytes;
    int code = standin_fault("cublasLtMatmul");
    if (code)
        return code;
    if (operation->value[EPILOGUE] != EPILOGUE_DEFAULT || a_layout->value[ORDER] || d_layout->value[ORDER] ||
        operation->value[POINTER_MODE])
        return standin_missing("a product with an epilogue, or by rows", NOT_SUPPORTED);
    struct standin_matrix left = matrix(a, a_layout, operation->value[TRANSA]),
                          right = matrix(b, b_layout, operation->value[TRANSB]);
    struct standin_matrix added = matrix(c, c_layout, false), result = matrix(d, d_layout, false);
    long long m = d_layout->value[ROWS], n = d_layout->value[COLS];
    long long k = left.transposed ? a_layout->value[ROWS] : a_layout->value[COLS];
    if (!standin_layout_fits(&left, m, k) || !standin_layout_fits(&right, k, n) ||
        !standin_layout_fits(&result, m, n))
        return INVALID_VALUE;
    bool narrow = left.type == CUDA_R_8F_E4M3;
    /* 8 bits: A transposed, B not, and 16 bytes at a time (cuBLAS, "Using cublasLtMatmul with FP8"). */
    if (narrow &&
        (!left.transposed || right.transposed || k % 16 || m % 16 || (uintptr_t)a % 16 || (uintptr_t)b % 16))
        return NOT_SUPPORTED;
    if (!standin_type_bytes(left.type) || left.type != right.type || !standin_type_bytes(result.type))
        return standin_missing("a product of such operands", NOT_SUPPORTED);
    bool wide = left.type == CUDA_R_64F;
    double factor = wide ? *(const double *)alpha : *(const float *)alpha;
    double kept = wide ? *(const double *)beta : *(const float *)beta;
    int batch = (int)d_layout->value[BATCH], device = standin_stream_device(stream);
    double elements = ((double)m * k + (double)k * n + (double)m * n) * batch;
    bool tf32 = operation->value[COMPUTE_TYPE] == FAST_TF32;
    if (standin_launch("product", stream, elements * standin_type_bytes(left.type),
                       standin_fp32_flop(2.0 * m * n * k * batch, left.type, tf32)))
        return EXECUTION_FAILED;
    factor *= scale(operation, A_SCALE) * scale(operation, B_SCALE) * scale(operation, D_SCALE);
    if (!standin_product(device, m, n, k, factor, &left, &right, kept, &added, &result, batch, tf32))
        standin_break(cudaErrorIllegalAddress);
    return SUCCESS;
}
