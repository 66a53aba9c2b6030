/* A stand-in for the driver's library (libcuda.so.1): what torch and the payload ask it themselves. */
#include "standin.h"

#include <stddef.h>
#include <stdio.h>

bool standin_has_context(int device);
cudaError_t standin_make_context(int device);

#define INVALID_VALUE 1
#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define NOT_FOUND 500

static int count(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) ? 0 : devices;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : count() ? 0 : NO_DEVICE; }

int cuDriverGetVersion(int *version) { return (int)cudaDriverGetVersion(version); }

int cuDeviceGetCount(int *devices) {
    *devices = count();
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < count() ? 0 : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return (int)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (flags)
        *flags = 0;
    *active = standin_has_context(device);
    return device >= 0 && device < count() ? 0 : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    static char contexts[STANDIN_DEVICES];
    *context = &contexts[device];
    return (int)standin_make_context(device);
}

int cuCtxGetCurrent(void **context) {
    *context = NULL;
    return standin_has_context(standin_device()) ? cuDevicePrimaryCtxRetain(context, standin_device()) : 0;
}

int cuCtxSetCurrent(void *context) { return (void)context, 0; }

int cuGetErrorString(int error, const char **words) {
    *words = cudaGetErrorString((cudaError_t)error);
    return 0;
}

int cuGetErrorName(int error, const char **name) {
    *name = cudaGetErrorName((cudaError_t)error);
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer) {
    struct cudaPointerAttributes found;
    if (attribute != 9) /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
        return standin_missing("cuPointerGetAttribute of another attribute", INVALID_VALUE);
    cudaPointerGetAttributes(&found, (void *)pointer);
    *(int *)data = found.device;
    return found.type == cudaMemoryTypeUnregistered ? INVALID_VALUE : 0;
}
