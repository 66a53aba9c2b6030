/* A stand-in for cuBLAS (libcublas): handles, streams, layouts and products; nothing else. */
#include "standin.h"

#include <stdint.h>
#include <stdlib.h>

/* cublasStatus_t, cublasComputeType_t and cublasMath_t of cublas_api.h */
enum {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15
};
enum { COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };
enum { TF32_MATH = 3 };
#define MAGIC 0xb1a5

struct handle {
    int magic, device, math, pointer_mode;
    cudaStream_t stream;
};

static bool is_handle(const struct handle *handle) { return handle && handle->magic == MAGIC; }

int cublasCreate_v2(struct handle **made) {
    int code = standin_fault("cublasCreate");
    if (code)
        return code;
    if (standin_call("cublasCreate")) /* a broken context */
        return NOT_INITIALIZED;
    *made = calloc(1, sizeof **made);
    **made = (struct handle){MAGIC, standin_device(), 0, 0, NULL};
    return SUCCESS;
}

int cublasDestroy_v2(struct handle *handle) {
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    handle->magic = 0; /* kept, so that who uses it later is found */
    return SUCCESS;
}

int cublasSetStream_v2(struct handle *handle, cudaStream_t stream) {
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    if (standin_stream_device(stream) != handle->device)
        return INVALID_VALUE;
    handle->stream = stream;
    return SUCCESS;
}

int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes) {
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    return (uintptr_t)workspace % 256 || !standin_reaches(handle->device, workspace, bytes) ? INVALID_VALUE
                                                                                            : SUCCESS;
}

int cublasSetMathMode(struct handle *handle, int math) {
    return is_handle(handle) ? (handle->math = math, SUCCESS) : NOT_INITIALIZED;
}
int cublasGetMathMode(struct handle *handle, int *math) {
    return is_handle(handle) ? (*math = handle->math, SUCCESS) : NOT_INITIALIZED;
}
int cublasSetPointerMode_v2(struct handle *handle, int mode) {
    return is_handle(handle) ? (handle->pointer_mode = mode, SUCCESS) : NOT_INITIALIZED;
}
int cublasGetPointerMode_v2(struct handle *handle, int *mode) {
    return is_handle(handle) ? (*mode = handle->pointer_mode, SUCCESS) : NOT_INITIALIZED;
}

int cublasGetProperty(int which, int *value) {
    int version = standin_machine()->cublas; /* 120804: 12.8.4 */
    int parts[] = {version / 10000, version / 100 % 100, version % 100};
    if (which < 0 || which > 2)
        return INVALID_VALUE;
    *value = parts[which];
    return SUCCESS;
}

int cublasGetVersion_v2(struct handle *handle, int *version) {
    (void)handle;
    *version = standin_machine()->cublas;
    return SUCCESS;
}

/* A product of a batch; how the result is laid out stands in `c`. */
static int multiply(struct handle *handle, int m, int n, int k, const void *alpha, struct standin_matrix a,
                    struct standin_matrix b, const void *beta, struct standin_matrix c, int batch,
                    int compute) {
    if (!is_handle(handle))
        return NOT_INITIALIZED;
    int code = standin_fault("cublasGemm");
    if (code)
        return code;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || !standin_layout_fits(&a, m, k) ||
        !standin_layout_fits(&b, k, n) || !standin_layout_fits(&c, m, n))
        return INVALID_VALUE;
    if (!standin_type_bytes(a.type) || a.type != b.type || !standin_type_bytes(c.type) ||
        handle->pointer_mode)
        return standin_missing("a product of such operands", NOT_SUPPORTED);
    bool wide = a.type == CUDA_R_64F;
    double factor = wide ? *(const double *)alpha : *(const float *)alpha;
    double added = wide ? *(const double *)beta : *(const float *)beta;
    double elements = ((double)m * k + (double)k * n + (double)m * n) * batch;
    bool tf32 = compute == COMPUTE_32F_FAST_TF32 || (handle->math & 0xf) == TF32_MATH;
    if (standin_launch("product", handle->stream, elements * standin_type_bytes(a.type),
                       standin_fp32_flop(2.0 * m * n * k * batch, a.type, tf32)))
        return EXECUTION_FAILED;
    if (!standin_product(handle->device, m, n, k, factor, &a, &b, added, &c, &c, batch,
                         tf32 && a.type == CUDA_R_32F))
        standin_break(cudaErrorIllegalAddress); /* as the kernel would find out */
    return SUCCESS;
}

#define MATRIX(data, type, ld, stride, transposed)                                                           \
    ((struct standin_matrix){(void *)(data), type, ld, stride, transposed})

int cublasGemmStridedBatchedEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, cudaDataType a_type, int lda, long long a_stride, const void *b,
                               cudaDataType b_type, int ldb, long long b_stride, const void *beta, void *c,
                               cudaDataType c_type, int ldc, long long c_stride, int batch, int compute,
                               int algorithm) {
    (void)algorithm;
    return multiply(handle, m, n, k, alpha, MATRIX(a, a_type, lda, a_stride, ta != 0),
                    MATRIX(b, b_type, ldb, b_stride, tb != 0), beta, MATRIX(c, c_type, ldc, c_stride, false),
                    batch, compute);
}

int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                 cudaDataType a_type, int lda, const void *b, cudaDataType b_type, int ldb, const void *beta,
                 void *c, cudaDataType c_type, int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0,
                                      beta, c, c_type, ldc, 0, 1, compute, algorithm);
}

#define DEFINE_GEMM(letter, real, type)                                                                      \
    int cublas##letter##gemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k,                  \
                                const real *alpha, const real *a, int lda, const real *b, int ldb,           \
                                const real *beta, real *c, int ldc) {                                        \
        return cublasGemmEx(handle, ta, tb, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc,  \
                            0, 0);                                                                           \
    }                                                                                                        \
    int cublas##letter##gemmStridedBatched(struct handle *handle, int ta, int tb, int m, int n, int k,       \
                                           const real *alpha, const real *a, int lda, long long a_stride,    \
                                           const real *b, int ldb, long long b_stride, const real *beta,     \
                                           real *c, int ldc, long long c_stride, int batch) {                \
        return cublasGemmStridedBatchedEx(handle, ta, tb, m, n, k, alpha, a, type, lda, a_stride, b, type,   \
                                          ldb, b_stride, beta, c, type, ldc, c_stride, batch, 0, 0);         \
    }                                                                                                        \
    /* y = alpha op(A) x + beta y: a product whose right side is one row of x */                             \
    int cublas##letter##gemv_v2(struct handle *handle, int ta, int m, int n, const real *alpha,              \
                                const real *a, int lda, const real *x, int x_step, const real *beta,         \
                                real *y, int y_step) {                                                       \
        if (y_step != 1)                                                                                     \
            return standin_missing("a matrix times a vector with gaps", NOT_SUPPORTED);                      \
        int rows = ta ? n : m, columns = ta ? m : n;                                                         \
        return multiply(handle, rows, 1, columns, alpha, MATRIX(a, type, lda, 0, ta != 0),                   \
                        MATRIX(x, type, x_step, 0, true), beta, MATRIX(y, type, rows, 0, false), 1, 0);      \
    }
DEFINE_GEMM(S, float, CUDA_R_32F)
DEFINE_GEMM(D, double, CUDA_R_64F)
