/* Matrix products on the host, and the number formats of their operands. */
#include "standin.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t standin_type_bytes(cudaDataType type) {
    switch ((int)type) {
    case CUDA_R_32F: return 4;
    case CUDA_R_64F: return 8;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8F_E4M3: return 1;
    default: return 0;
    }
}

double standin_fp32_flop(double flop, cudaDataType type, bool tf32) {
    switch ((int)type) {
    case CUDA_R_64F: return 2 * flop;
    case CUDA_R_16F:
    case CUDA_R_16BF: return flop / 16;
    case CUDA_R_8F_E4M3: return flop / 32;
    default: return tf32 ? flop / 8 : flop;
    }
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Eight bits with four of exponent and three of mantissa, without infinity (OCP FP8, E4M3). */
static float from_e4m3(uint8_t bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float value = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
    if ((bits & 0x7f) == 0x7f)
        value = NAN;
    return bits & 0x80 ? -value : value;
}

double standin_load(const void *data, cudaDataType type, size_t index) {
    switch ((int)type) {
    case CUDA_R_64F: return ((const double *)data)[index];
    case CUDA_R_16F: return ((const _Float16 *)data)[index];
    case CUDA_R_16BF: return from_bits((uint32_t)((const uint16_t *)data)[index] << 16);
    case CUDA_R_8F_E4M3: return from_e4m3(((const uint8_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

void standin_store(void *data, cudaDataType type, size_t index, double value) {
    switch ((int)type) {
    case CUDA_R_64F: ((double *)data)[index] = value; break;
    case CUDA_R_16F: ((_Float16 *)data)[index] = (_Float16)value; break;
    case CUDA_R_16BF: {
        uint32_t bits = to_bits((float)value);
        ((uint16_t *)data)[index] = isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        break;
    }
    default: ((float *)data)[index] = (float)value;
    }
}

bool standin_layout_fits(const struct standin_matrix *matrix, long long rows, long long columns) {
    return matrix->ld >= (matrix->transposed ? columns : rows) && matrix->ld > 0;
}

/* The bytes from the first to the last element of all matrices of a batch. */
static size_t extent(const struct standin_matrix *matrix, long long rows, long long columns, int batch) {
    long long height = matrix->transposed ? columns : rows, width = matrix->transposed ? rows : columns;
    return ((batch - 1) * matrix->stride + (width - 1) * matrix->ld + height) *
           standin_type_bytes(matrix->type);
}

/* op(A) of one matrix of a batch, row by row; of op(B) its columns, which is the same of B transposed. */
static void *unpack(const struct standin_matrix *matrix, long long rows, long long columns, int number,
                    bool by_column, bool tf32, bool wide) {
    size_t count = (size_t)rows * columns, bytes = standin_type_bytes(matrix->type);
    char *data = (char *)matrix->data + number * matrix->stride * (long long)bytes;
    float *narrow = malloc(count * (wide ? 8 : 4));
    double *broad = (double *)narrow;
    for (long long outer = 0; outer < (by_column ? columns : rows); outer++)
        for (long long inner = 0; inner < (by_column ? rows : columns); inner++) {
            long long row = by_column ? inner : outer, column = by_column ? outer : inner;
            size_t place = matrix->transposed ? row * matrix->ld + column : column * matrix->ld + row;
            double value = standin_load(data, matrix->type, place);
            if (tf32) /* ten bits of mantissa */
                value = from_bits((to_bits((float)value) + 0x1000) & 0xffffe000);
            size_t to = (size_t)outer * (by_column ? rows : columns) + inner;
            if (wide)
                broad[to] = value;
            else
                narrow[to] = (float)value;
        }
    return narrow;
}

#define DEFINE_MULTIPLY(name, real)                                                                          \
    /* out (m x n, by row) = a (by row) times b (by column); always in the same order, so with the same      \
     * bits. */                                                                                              \
    static void name(long long m, long long n, long long k, const real *a, const real *b, real *out) {       \
        for (long long j0 = 0; j0 < n; j0 += 4)                                                              \
            for (long long i0 = 0; i0 < m; i0 += 4) {                                                        \
                long long rows = m - i0 < 4 ? m - i0 : 4, columns = n - j0 < 4 ? n - j0 : 4;                 \
                if (rows == 4 && columns == 4) {                                                             \
                    const real *a0 = a + i0 * k, *b0 = b + j0 * k;                                           \
                    real sum[4][4] = {{0}};                                                                  \
                    for (long long l = 0; l < k; l++)                                                        \
                        for (int i = 0; i < 4; i++)                                                          \
                            for (int j = 0; j < 4; j++)                                                      \
                                sum[i][j] += a0[i * k + l] * b0[j * k + l];                                  \
                    for (int i = 0; i < 4; i++)                                                              \
                        for (int j = 0; j < 4; j++)                                                          \
                            out[(i0 + i) * n + j0 + j] = sum[i][j];                                          \
                    continue;                                                                                \
                }                                                                                            \
                for (long long i = i0; i < i0 + rows; i++)                                                   \
                    for (long long j = j0; j < j0 + columns; j++) {                                          \
                        real sum = 0;                                                                        \
                        for (long long l = 0; l < k; l++)                                                    \
                            sum += a[i * k + l] * b[j * k + l];                                              \
                        out[i * n + j] = sum;                                                                \
                    }                                                                                        \
            }                                                                                                \
    }
DEFINE_MULTIPLY(multiply_float, float)
DEFINE_MULTIPLY(multiply_double, double)

bool standin_product(int device, long long m, long long n, long long k, double alpha,
                     const struct standin_matrix *a, const struct standin_matrix *b, double beta,
                     const struct standin_matrix *c, const struct standin_matrix *d, int batch, bool tf32) {
    if (!m || !n || !batch)
        return true;
    if (!standin_reaches(device, d->data, extent(d, m, n, batch)) ||
        (k && !standin_reaches(device, a->data, extent(a, m, k, batch))) ||
        (k && !standin_reaches(device, b->data, extent(b, k, n, batch))) ||
        (beta != 0 && !standin_reaches(device, c->data, extent(c, m, n, batch))))
        return false;
    bool wide = a->type == CUDA_R_64F;
    void *out = malloc((size_t)m * n * (wide ? 8 : 4));
    for (int number = 0; number < batch; number++) {
        void *left = unpack(a, m, k, number, false, tf32, wide),
             *right = unpack(b, k, n, number, true, tf32, wide);
        if (wide)
            multiply_double(m, n, k, left, right, out);
        else
            multiply_float(m, n, k, left, right, out);
        char *target = (char *)d->data + number * d->stride * (long long)standin_type_bytes(d->type);
        const char *added = (char *)c->data + number * c->stride * (long long)standin_type_bytes(c->type);
        for (long long column = 0; column < n; column++)
            for (long long row = 0; row < m; row++) {
                size_t place = (size_t)row * n + column;
                double value = alpha * (wide ? ((double *)out)[place] : ((float *)out)[place]);
                if (beta != 0)
                    value += beta * standin_load(added, c->type, column * c->ld + row);
                standin_store(target, d->type, column * d->ld + row, value);
            }
        free(left);
        free(right);
    }
    free(out);
    return true;
}
