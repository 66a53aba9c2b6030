/* A stand-in for cuDNN (libcudnn.so.9) that tells its version. It convolves nothing. */
#include "standin.h"

size_t cudnnGetVersion(void) { return standin_machine()->cudnn; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(int status) {
    return status ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS";
}

int cudnnGetProperty(int which, int *value) {
    int version = standin_machine()->cudnn; /* 91002: 9.10.2 */
    int parts[] = {version / 10000, version / 100 % 100, version % 100};
    if (which < 0 || which > 2)
        return 2000; /* CUDNN_STATUS_BAD_PARAM */
    *value = parts[which];
    return 0;
}
