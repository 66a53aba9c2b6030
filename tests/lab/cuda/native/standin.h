/* What the stand-in's libraries share. The state is in runtime.c, which becomes libcudart. */
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>
#include <stdbool.h>
#include <stddef.h>

#define STANDIN_DEVICES 16

/* The machine that is played, from the file TEMPER_CUDA_MACHINE: lines of "name value". Rates are a model. */
struct standin_machine {
    int devices;
    char name[256];
    char pci[STANDIN_DEVICES][16];
    int major, minor, sms;
    double memory_mib;    /* of each device */
    double context_mib;   /* that a context takes of it */
    double memory_gb_s;   /* bytes read and written in a device's memory */
    double pinned_gb_s;   /* between a device and pinned host memory */
    double pageable_gb_s; /* and pageable host memory */
    double peer_gb_s;     /* between two devices */
    double nccl_gb_s;     /* bus bandwidth of collectives */
    double tflops;        /* of products in fp32; in narrower formats as many times more as Hopper has */
    double launch_us;     /* that anything takes at least */
    int peers;            /* whether devices reach each other; at most so many at a time */
    int multicast;
    int exclusive;           /* whether a device takes one process only */
    int driver_cuda;         /* as cuDriverGetVersion says it: 12080 */
    int cudnn, nccl, cublas; /* versions as the libraries say them */
    char state[256];         /* a folder that all processes of the machine share */
    char meeting[256];      /* and one that machines share whose GPUs compute together; else the same */
};

const struct standin_machine *standin_machine(void);

/* Begin a call of the runtime: the error that the context is broken with, or one that is injected here. */
cudaError_t standin_call(const char *name);
/* The code that TEMPER_CUDA_FAULT injects into this call, 0 for none. It may also hang or end the process. */
int standin_fault(const char *name);
/* Note what a call of the runtime returns. */
cudaError_t standin_done(cudaError_t error);
/* Break this process's context, as an asynchronous error does: every later call returns it. */
void standin_break(cudaError_t error);
/* Say on standard error that something is not implemented here. */
int standin_missing(const char *name, int code);

int standin_device(void);
/* The device of a stream's handle, -1 for one that is none, or was destroyed. */
int standin_stream_device(cudaStream_t stream);
/* Whether a stream of this device may touch these bytes: its own memory, pinned memory, or an enabled peer's.
 */
bool standin_reaches(int device, const void *start, size_t bytes);
/* Let a stream work for so long in the model. */
cudaError_t standin_work(cudaStream_t stream, double seconds);
/* Launch something that reads and writes bytes and calculates, as a kernel does. */
cudaError_t standin_launch(const char *what, cudaStream_t stream, double bytes, double flop);

/* One operand of a product: column by column, as cuBLAS has it. */
struct standin_matrix {
    void *data;
    cudaDataType type;
    long long ld, stride; /* in elements */
    bool transposed;
};

size_t standin_type_bytes(cudaDataType type); /* 0: unknown here */
/* What so many operations in this format take as long as in fp32. */
double standin_fp32_flop(double flop, cudaDataType type, bool tf32);
double standin_load(const void *data, cudaDataType type, size_t index);
void standin_store(void *data, cudaDataType type, size_t index, double value);
/* Whether leading dimensions hold rows x columns. */
bool standin_layout_fits(const struct standin_matrix *matrix, long long rows, long long columns);
/* D = alpha op(A) op(B) + beta C, `batch` times; false if a stream of this device cannot reach an operand. */
bool standin_product(int device, long long m, long long n, long long k, double alpha,
                     const struct standin_matrix *a, const struct standin_matrix *b, double beta,
                     const struct standin_matrix *c, const struct standin_matrix *d, int batch, bool tf32);
