/* A stand-in for CUPTI (libcupti) that records nothing: it says so in words, which torch's profiler asks for. */
#include "standin.h"

int cuptiGetResultString(int result, const char **words) {
    *words = result ? "CUPTI_ERROR_NOT_SUPPORTED" : "CUPTI_SUCCESS";
    return 0;
}
