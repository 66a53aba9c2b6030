/* A stand-in for the CUDA runtime (libcudart): device memory is host memory, and work is done at once.
 *
 * Handles, devices, contexts, peers and ranges of memory are checked as the real runtime checks them. No
 * kernel of a binary can run here: a launch is refused with the kernel's name. Time is a model: every stream
 * has a clock that only its own work and the events it waits for move on.
 */
#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOT_COMPUTED 9901 /* no code of CUDA's: this kernel is not computed here */
#define SLOTS 512
#define PAGE 4096UL
#define MIB (1 << 20)

/* ---------------------------------------------------------------- the machine */

static struct standin_machine machine = {
    .devices = 1,
    .name = "CUDA stand-in",
    .major = 9,
    .minor = 0,
    .sms = 8,
    .memory_mib = 4096,
    .context_mib = 64,
    .memory_gb_s = 8,
    .pinned_gb_s = 4,
    .pageable_gb_s = 2,
    .peer_gb_s = 4,
    .nccl_gb_s = 1,
    .tflops = 0.02,
    .launch_us = 5,
    .peers = 8,
    .driver_cuda = 13000,
    .cudnn = 91002,
    .nccl = 22705,
    .cublas = 120804,
    .state = "/dev/shm",
};

static const struct {
    const char *name;
    void *to;
    char kind; /* i: int, d: double, s: a string of 255 bytes */
} settings[] = {
    {"devices", &machine.devices, 'i'},
    {"name", machine.name, 's'},
    {"sms", &machine.sms, 'i'},
    {"major", &machine.major, 'i'},
    {"minor", &machine.minor, 'i'},
    {"memory_mib", &machine.memory_mib, 'd'},
    {"context_mib", &machine.context_mib, 'd'},
    {"memory_gb_s", &machine.memory_gb_s, 'd'},
    {"pinned_gb_s", &machine.pinned_gb_s, 'd'},
    {"pageable_gb_s", &machine.pageable_gb_s, 'd'},
    {"peer_gb_s", &machine.peer_gb_s, 'd'},
    {"nccl_gb_s", &machine.nccl_gb_s, 'd'},
    {"tflops", &machine.tflops, 'd'},
    {"launch_us", &machine.launch_us, 'd'},
    {"peers", &machine.peers, 'i'},
    {"multicast", &machine.multicast, 'i'},
    {"exclusive", &machine.exclusive, 'i'},
    {"driver_cuda", &machine.driver_cuda, 'i'},
    {"cudnn", &machine.cudnn, 'i'},
    {"nccl", &machine.nccl, 'i'},
    {"cublas", &machine.cublas, 'i'},
    {"state", machine.state, 's'},
    {"meeting", machine.meeting, 's'},
};

static void fail(const char *what, const char *found) {
    fprintf(stderr, "cuda stand-in: %s: %s\n", what, found);
    exit(70);
}

static void set(const char *name, const char *value) {
    static int addresses;
    if (!strcmp(name, "pci") && addresses < STANDIN_DEVICES) {
        snprintf(machine.pci[addresses++], sizeof machine.pci[0], "%.15s", value);
        return;
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) {
            if (settings[i].kind == 'i')
                *(int *)settings[i].to = atoi(value);
            else if (settings[i].kind == 'd')
                *(double *)settings[i].to = atof(value);
            else
                snprintf(settings[i].to, 256, "%.255s", value);
            return;
        }
    fail("no setting of a machine has this name", name);
}

__attribute__((constructor)) static void read_machine(void) {
    const char *path = getenv("TEMPER_CUDA_MACHINE");
    for (int i = 0; i < STANDIN_DEVICES; i++)
        snprintf(machine.pci[i], sizeof machine.pci[0], "0000:%02x:00.0", 0x10 + i);
    FILE *file = path ? fopen(path, "r") : NULL;
    if (path && !file)
        fail("the machine's file cannot be read", path);
    char line[600], name[64], value[512];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %511[^\n]", name, value) == 2)
            set(name, value);
    if (file)
        fclose(file);
    if (!machine.meeting[0])
        memcpy(machine.meeting, machine.state, sizeof machine.meeting);
    if (machine.devices > STANDIN_DEVICES)
        fail("too many devices", path);
}

const struct standin_machine *standin_machine(void) { return &machine; }

/* ---------------------------------------------------------------- errors and faults */

static const struct {
    int code;
    const char *name, *words;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {46, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {711, "cudaErrorTooManyPeers", "peer mapping resources exhausted"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {714, "cudaErrorHardwareStackError", "hardware stack error"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "system not yet initialized"},
    {999, "cudaErrorUnknown", "unknown error"},
    {NOT_COMPUTED, "standinNotComputed", "the CUDA stand-in does not compute this kernel"},
};

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static __thread cudaError_t last_error;
static __thread int current_device;
static cudaError_t broken; /* of the whole process: its context is lost */

/* Those that come while the device works, and take the context with them. */
static bool is_asynchronous(int code) {
    return code == 214 || (code >= 700 && code <= 720 && code != 704 && (code < 711 || code > 713));
}

int standin_missing(const char *name, int code) {
    fprintf(stderr, "cuda stand-in: %s is not implemented\n", name);
    return code;
}

static void hang(void) {
    for (;;)
        pause();
}

int standin_fault(const char *name) {
    /* NAME:COUNT:CODE[@DEVICE], separated by commas: from its COUNT-th call on. CODE may be hang or die. */
    static struct {
        char name[64], code[16];
        long count;
        int device;
    } faults[16];
    static int known = -1;
    pthread_mutex_lock(&lock);
    if (known < 0) {
        known = 0;
        char *text = strdup(getenv("TEMPER_CUDA_FAULT") ? getenv("TEMPER_CUDA_FAULT") : ""), *rest = text;
        for (char *one; known < 16 && (one = strsep(&rest, ",")) && *one; known++) {
            faults[known].device = -1;
            if (sscanf(one, "%63[^:]:%ld:%15[^@]@%d", faults[known].name, &faults[known].count,
                       faults[known].code, &faults[known].device) < 3)
                fail("TEMPER_CUDA_FAULT is NAME:COUNT:CODE[@DEVICE], and not", one);
        }
        free(text);
    }
    int code = 0;
    for (int i = 0; i < known && !code; i++) {
        if (strcmp(faults[i].name, name) || (faults[i].device >= 0 && faults[i].device != current_device))
            continue;
        if (--faults[i].count > 0)
            continue;
        if (!strcmp(faults[i].code, "hang")) {
            pthread_mutex_unlock(&lock);
            hang();
        }
        if (!strcmp(faults[i].code, "die"))
            abort();
        code = atoi(faults[i].code);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

cudaError_t standin_done(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

void standin_break(cudaError_t error) {
    if (!broken)
        broken = error;
}

cudaError_t standin_call(const char *name) {
    if (broken)
        return broken;
    int code = standin_fault(name);
    if (is_asynchronous(code))
        standin_break(code); /* this call still goes through: whoever waits next learns of it */
    return is_asynchronous(code) ? cudaSuccess : (cudaError_t)code;
}

const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error)
            return errors[i].words;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error)
            return errors[i].name;
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = broken ? broken : last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return broken ? broken : last_error; }

#define BEGIN(name)                                                                                          \
    do {                                                                                                     \
        cudaError_t begun = standin_call(name);                                                              \
        if (begun)                                                                                           \
            return standin_done(begun);                                                                      \
    } while (0)

/* Of calls that ask for no context: they go on when it is broken. */
#define QUERY(name)                                                                                          \
    do {                                                                                                     \
        int injected = standin_fault(name);                                                                  \
        if (injected)                                                                                        \
            return standin_done((cudaError_t)injected);                                                      \
    } while (0)

#define CONTEXT                                                                                              \
    do {                                                                                                     \
        cudaError_t made = context(current_device);                                                          \
        if (made)                                                                                            \
            return standin_done(made);                                                                       \
    } while (0)

/* ---------------------------------------------------------------- devices that processes share */

struct slot {
    int pid, device;
    uint64_t bytes;
};
static struct slot *slots; /* shared: what each process takes of each device */
static int slots_file = -1;

static bool open_slots(void) {
    if (slots)
        return true;
    char path[300];
    snprintf(path, sizeof path, "%s/devices", machine.state);
    slots_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (slots_file < 0 || ftruncate(slots_file, SLOTS * sizeof *slots))
        fail("the state of devices cannot be kept", path);
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_SHARED, slots_file, 0);
    return slots != MAP_FAILED;
}

/* What processes take of a device; whoever has died has given it back. */
static uint64_t taken(int device, bool others_only) {
    uint64_t bytes = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].pid && kill(slots[i].pid, 0) && errno == ESRCH)
            slots[i].pid = 0;
        if (slots[i].pid && slots[i].device == device && !(others_only && slots[i].pid == getpid()))
            bytes += slots[i].bytes;
    }
    return bytes;
}

/* Take so much more of a device, or give it back. */
static bool take(int device, int64_t bytes) {
    open_slots();
    flock(slots_file, LOCK_EX);
    bool fits = bytes < 0 || taken(device, false) + bytes <= (uint64_t)(machine.memory_mib * MIB);
    struct slot *mine = NULL, *empty = NULL;
    for (int i = 0; i < SLOTS && fits; i++) {
        if (slots[i].pid == getpid() && slots[i].device == device)
            mine = &slots[i];
        else if (!slots[i].pid && !empty)
            empty = &slots[i];
    }
    if (fits && !mine && empty) {
        *empty = (struct slot){getpid(), device, 0};
        mine = empty;
    }
    if (fits && mine)
        mine->bytes += bytes;
    flock(slots_file, LOCK_UN);
    return fits && mine;
}

static int visible[STANDIN_DEVICES], visible_count = -1;

/* CUDA_VISIBLE_DEVICES by number: up to the first that is none. */
static int count_devices(void) {
    if (visible_count >= 0)
        return visible_count;
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!text) {
        for (int i = 0; i < machine.devices; i++)
            visible[visible_count++] = i;
        return visible_count;
    }
    for (char *end; *text && visible_count < STANDIN_DEVICES; text = *end == ',' ? end + 1 : end) {
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= machine.devices)
            break;
        visible[visible_count++] = device;
    }
    return visible_count;
}

static struct {
    bool made;
    double clock; /* of the default stream */
    bool reaches[STANDIN_DEVICES];
} contexts[STANDIN_DEVICES];

/* Make this device's context, which is when a device that is taken or not ready says so. */
static cudaError_t context(int device) {
    pthread_mutex_lock(&lock);
    cudaError_t error = cudaSuccess;
    if (!contexts[device].made) {
        open_slots();
        int code = standin_fault("context");
        if (code)
            error = code;
        else if (machine.exclusive && taken(visible[device], true))
            error = cudaErrorDevicesUnavailable;
        else if (!take(visible[device], (int64_t)(machine.context_mib * MIB)))
            error = cudaErrorMemoryAllocation;
        else
            contexts[device].made = true;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int standin_device(void) { return current_device; }

bool standin_has_context(int device) {
    return device >= 0 && device < STANDIN_DEVICES && contexts[device].made;
}

cudaError_t standin_make_context(int device) { return context(device); }

static cudaError_t started(void) {
    if (machine.driver_cuda / 1000 < CUDART_VERSION / 1000) /* within a major release they are compatible */
        return cudaErrorInsufficientDriver;
    int code = standin_fault("init");
    return code ? (cudaError_t)code : count_devices() ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = machine.driver_cuda;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    QUERY("cudaGetDeviceCount");
    *count = 0;
    cudaError_t error = started();
    if (!error)
        *count = count_devices();
    return standin_done(error);
}

cudaError_t cudaGetDevice(int *device) {
    QUERY("cudaGetDevice");
    cudaError_t error = started();
    *device = current_device;
    return standin_done(error);
}

cudaError_t cudaSetDevice(int device) {
    BEGIN("cudaSetDevice");
    if (device < 0 || device >= count_devices())
        return standin_done(cudaErrorInvalidDevice);
    current_device = device;
    CONTEXT; /* since CUDA 12 */
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000 /* the second version has the plain name again */
#define cudaGetDeviceProperties_v2 cudaGetDeviceProperties
#endif

cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *found, int device) {
    QUERY("cudaGetDeviceProperties");
    if (device < 0 || device >= count_devices())
        return standin_done(cudaErrorInvalidDevice);
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "%s", machine.name);
    unsigned domain, bus, slot;
    sscanf(machine.pci[visible[device]], "%x:%x:%x", &domain, &bus, &slot);
    found->pciDomainID = domain, found->pciBusID = bus, found->pciDeviceID = slot;
    memcpy(found->uuid.bytes, machine.pci[visible[device]], 12);
    found->totalGlobalMem = (size_t)(machine.memory_mib * MIB);
    found->major = machine.major, found->minor = machine.minor;
    found->multiProcessorCount = machine.sms;
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024, found->maxThreadsPerMultiProcessor = 2048;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024, found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 0x7fffffff, found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->sharedMemPerBlock = 49152, found->sharedMemPerBlockOptin = 232448;
    found->sharedMemPerMultiprocessor = 233472, found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->l2CacheSize = 50 * MIB, found->textureAlignment = 512, found->totalConstMem = 65536;
    found->unifiedAddressing = found->concurrentKernels = found->managedMemory = found->cooperativeLaunch = 1;
    found->asyncEngineCount = 3, found->maxBlocksPerMultiProcessor = 32, found->ECCEnabled = 1;
    found->canMapHostMemory = found->streamPrioritiesSupported = found->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    QUERY("cudaDeviceGetAttribute");
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties_v2(&properties, device);
    if (error)
        return error;
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = machine.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = machine.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = machine.sms; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)properties.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)properties.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case 132: *value = machine.multicast; break; /* CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED */
    default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    QUERY("cudaDeviceGetPCIBusId");
    if (device < 0 || device >= count_devices())
        return standin_done(cudaErrorInvalidDevice);
    snprintf(text, size, "%s", machine.pci[visible[device]]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    QUERY("cudaDeviceGetStreamPriorityRange");
    *least = 0, *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    BEGIN("cudaMemGetInfo");
    CONTEXT;
    *total = (size_t)(machine.memory_mib * MIB);
    flock(slots_file, LOCK_EX);
    *free_bytes = *total - taken(visible[current_device], false);
    flock(slots_file, LOCK_UN);
    return cudaSuccess;
}

/* ---------------------------------------------------------------- peers */

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    QUERY("cudaDeviceCanAccessPeer");
    int count = count_devices();
    if (device < 0 || peer < 0 || device >= count || peer >= count)
        return standin_done(cudaErrorInvalidDevice);
    *can = machine.peers > 0 && device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    BEGIN("cudaDeviceEnablePeerAccess");
    if (flags)
        return standin_done(cudaErrorInvalidValue);
    if (peer < 0 || peer >= count_devices() || peer == current_device)
        return standin_done(cudaErrorInvalidDevice);
    if (!machine.peers)
        return standin_done(cudaErrorPeerAccessUnsupported);
    CONTEXT;
    pthread_mutex_lock(&lock);
    int enabled = 0;
    for (int i = 0; i < STANDIN_DEVICES; i++)
        enabled += contexts[current_device].reaches[i];
    bool already = contexts[current_device].reaches[peer];
    if (!already && enabled < machine.peers)
        contexts[current_device].reaches[peer] = true;
    pthread_mutex_unlock(&lock);
    if (already)
        return standin_done(cudaErrorPeerAccessAlreadyEnabled);
    return standin_done(enabled < machine.peers ? cudaSuccess : cudaErrorTooManyPeers);
}

/* ---------------------------------------------------------------- memory */

struct range {
    char *start;
    size_t bytes;
    int device; /* -1: pinned host memory */
    bool registered;
    struct range *next;
};
static struct range *ranges;

static struct range *find_range(const void *pointer) {
    for (struct range *range = ranges; range; range = range->next)
        if ((char *)pointer >= range->start && (char *)pointer < range->start + range->bytes)
            return range;
    return NULL;
}

static void add_range(void *start, size_t bytes, int device, bool registered) {
    struct range *range = malloc(sizeof *range);
    *range = (struct range){start, bytes, device, registered, ranges};
    ranges = range;
}

/* Forget the range that begins here; false if none does. */
static bool drop_range(const void *start, bool device, struct range *dropped) {
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->start == start && ((*at)->device >= 0) == device) {
            struct range *gone = *at;
            *dropped = *gone;
            *at = gone->next;
            free(gone);
            return true;
        }
    return false;
}

/* With a page behind that nobody may touch: the host's own code runs over the end of no buffer unseen. */
static void *map(size_t bytes) {
    size_t length = (bytes + PAGE - 1) / PAGE * PAGE;
    char *start =
        mmap(NULL, length + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    mprotect(start + length, PAGE, PROT_NONE);
    return start;
}

static void unmap(void *start, size_t bytes) { munmap(start, (bytes + PAGE - 1) / PAGE * PAGE + PAGE); }

static cudaError_t allocate(void **pointer, size_t bytes, int device) {
    *pointer = NULL;
    if (!bytes)
        return cudaSuccess;
    if (device >= 0 && !take(visible[device], (int64_t)bytes))
        return cudaErrorMemoryAllocation;
    if (!(*pointer = map(bytes))) {
        if (device >= 0)
            take(visible[device], -(int64_t)bytes);
        return cudaErrorMemoryAllocation;
    }
    pthread_mutex_lock(&lock);
    add_range(*pointer, bytes, device, false);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t release(void *pointer, bool device) {
    struct range range;
    if (!pointer)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    bool found = drop_range(pointer, device, &range);
    pthread_mutex_unlock(&lock);
    if (!found || range.registered)
        return cudaErrorInvalidValue;
    if (device)
        take(visible[range.device], -(int64_t)range.bytes);
    unmap(range.start, range.bytes);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    BEGIN("cudaMalloc");
    CONTEXT;
    return standin_done(allocate(pointer, bytes, current_device));
}

cudaError_t cudaFree(void *pointer) {
    BEGIN("cudaFree");
    CONTEXT;
    return standin_done(release(pointer, true));
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    BEGIN("cudaHostAlloc");
    CONTEXT;
    return standin_done(allocate(pointer, bytes, -1));
}

cudaError_t cudaFreeHost(void *pointer) {
    BEGIN("cudaFreeHost");
    return standin_done(release(pointer, false));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    BEGIN("cudaHostRegister");
    CONTEXT;
    pthread_mutex_lock(&lock);
    bool overlaps = find_range(pointer) || find_range((char *)pointer + bytes - 1);
    if (!overlaps)
        add_range(pointer, bytes, -1, true);
    pthread_mutex_unlock(&lock);
    return standin_done(overlaps ? cudaErrorHostMemoryAlreadyRegistered : cudaSuccess);
}

cudaError_t cudaHostUnregister(void *pointer) {
    struct range range;
    BEGIN("cudaHostUnregister");
    pthread_mutex_lock(&lock);
    bool found = drop_range(pointer, false, &range);
    pthread_mutex_unlock(&lock);
    return standin_done(found && range.registered ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    BEGIN("cudaPointerGetAttributes");
    memset(found, 0, sizeof *found);
    pthread_mutex_lock(&lock);
    struct range *range = find_range(pointer);
    found->type = !range              ? cudaMemoryTypeUnregistered
                  : range->device < 0 ? cudaMemoryTypeHost
                                      : cudaMemoryTypeDevice;
    found->device = range && range->device >= 0 ? range->device : current_device;
    found->devicePointer = range ? (void *)pointer : NULL;
    found->hostPointer = range && range->device < 0 ? (void *)pointer : NULL;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Of what kind these bytes are: a device, -1 pinned, -2 pageable, -3 beyond the end of an allocation. */
static int place_of(const void *start, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct range *range = find_range(start);
    int place = !range ? -2 : (char *)start + bytes <= range->start + range->bytes ? range->device : -3;
    pthread_mutex_unlock(&lock);
    return place;
}

bool standin_reaches(int device, const void *start, size_t bytes) {
    int place = bytes ? place_of(start, bytes) : device;
    return place == device || place == -1 || (place >= 0 && contexts[device].reaches[place]);
}

/* ---------------------------------------------------------------- streams and events */

struct CUstream_st {
    int device;
    bool alive;
    double clock;
    struct CUstream_st *next;
};
struct CUevent_st {
    int device;
    bool alive, timed, recorded;
    double at;
    struct CUevent_st *next;
};
static struct CUstream_st *streams;
static struct CUevent_st *events;

/* The clock of a stream of this or another device, NULL for a handle that is none. */
static double *clock_of(cudaStream_t stream, int *device) {
    if ((uintptr_t)stream <= 2) { /* the legacy default stream, and that of a thread */
        *device = current_device;
        return &contexts[current_device].clock;
    }
    for (struct CUstream_st *one = streams; one; one = one->next)
        if (one == stream && one->alive) {
            *device = one->device;
            return &one->clock;
        }
    return NULL;
}

int standin_stream_device(cudaStream_t stream) {
    int device = -1;
    pthread_mutex_lock(&lock);
    clock_of(stream, &device);
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t standin_work(cudaStream_t stream, double seconds) {
    int device;
    pthread_mutex_lock(&lock);
    double *clock = clock_of(stream, &device);
    if (clock)
        *clock += seconds + machine.launch_us / 1e6;
    pthread_mutex_unlock(&lock);
    return clock ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

static cudaError_t make_stream(cudaStream_t *made) {
    CONTEXT;
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->device = current_device, stream->alive = true;
    pthread_mutex_lock(&lock);
    stream->next = streams, streams = stream;
    pthread_mutex_unlock(&lock);
    *made = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *made) {
    BEGIN("cudaStreamCreate");
    return make_stream(made);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) {
    (void)flags, (void)priority;
    BEGIN("cudaStreamCreate");
    return make_stream(made);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) {
    (void)flags;
    BEGIN("cudaStreamCreate");
    return make_stream(made);
}

/* What a call that only looks at a stream answers. */
static cudaError_t of_stream(cudaStream_t stream) {
    return standin_done(standin_stream_device(stream) < 0 ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN("cudaStreamDestroy");
    cudaError_t error = (uintptr_t)stream <= 2 ? cudaErrorInvalidResourceHandle : of_stream(stream);
    if (!error)
        stream->alive = false; /* kept, so that who uses it later is found */
    return standin_done(error);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    BEGIN("cudaStreamGetPriority");
    return of_stream(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    BEGIN("cudaStreamQuery");
    return of_stream(stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    BEGIN("cudaStreamSynchronize");
    if (broken)
        return standin_done(broken);
    return of_stream(stream);
}

cudaError_t cudaDeviceSynchronize(void) {
    BEGIN("cudaDeviceSynchronize");
    CONTEXT;
    return standin_done(broken);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    BEGIN("cudaStreamIsCapturing");
    return of_stream(stream);
}

/* Nothing is captured: no graph begins here. */
static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                unsigned long long *id) {
    *status = cudaStreamCaptureStatusNone;
    if (id)
        *id = 0;
    return of_stream(stream);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    (void)graph, (void)nodes, (void)edges, (void)count;
    return capture_info(stream, status, id);
}
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count) {
    (void)graph, (void)nodes, (void)count;
    return capture_info(stream, status, id);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    (void)mode;
    return cudaSuccess;
}

static cudaError_t make_event(cudaEvent_t *made, unsigned flags) {
    CONTEXT;
    struct CUevent_st *event = calloc(1, sizeof *event);
    event->device = current_device, event->alive = true, event->timed = !(flags & cudaEventDisableTiming);
    pthread_mutex_lock(&lock);
    event->next = events, events = event;
    pthread_mutex_unlock(&lock);
    *made = event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *made) {
    BEGIN("cudaEventCreate");
    return make_event(made, 0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) {
    BEGIN("cudaEventCreate");
    return make_event(made, flags);
}

static bool is_event(cudaEvent_t event) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct CUevent_st *one = events; one && !found; one = one->next)
        found = one == event && one->alive;
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    BEGIN("cudaEventDestroy");
    if (!is_event(event))
        return standin_done(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    for (struct CUevent_st **at = &events; *at; at = &(*at)->next)
        if (*at == event) {
            *at = event->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(event);
    return cudaSuccess;
}

static cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
    int device;
    if (!is_event(event))
        return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&lock);
    double *clock = clock_of(stream, &device);
    bool fits = clock && device == event->device; /* both of one context */
    if (fits)
        event->at = *clock, event->recorded = true;
    pthread_mutex_unlock(&lock);
    return fits ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    BEGIN("cudaEventRecord");
    return standin_done(record(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)flags;
    BEGIN("cudaEventRecord");
    return standin_done(record(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    BEGIN("cudaEventQuery");
    return standin_done(is_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN("cudaEventSynchronize");
    return standin_done(broken ? broken : is_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    BEGIN("cudaEventElapsedTime");
    if (!is_event(start) || !is_event(end) || !start->timed || !end->timed || !start->recorded ||
        !end->recorded || start->device != end->device)
        return standin_done(cudaErrorInvalidResourceHandle);
    *milliseconds = (float)((end->at - start->at) * 1e3);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    int device;
    BEGIN("cudaStreamWaitEvent");
    if (!is_event(event))
        return standin_done(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    double *clock = clock_of(stream, &device);
    if (clock && event->recorded && event->at > *clock)
        *clock = event->at;
    pthread_mutex_unlock(&lock);
    return standin_done(clock ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    BEGIN("cudaLaunchHostFunc");
    cudaError_t error = of_stream(stream);
    if (!error)
        function(data);
    return error;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data,
                                  unsigned flags) {
    (void)flags;
    BEGIN("cudaStreamAddCallback");
    cudaError_t error = of_stream(stream);
    if (!error)
        function(stream, cudaSuccess, data);
    return error;
}

/* ---------------------------------------------------------------- copies */

/* Seconds that a copy takes between two places (place_of). */
static double copy_s(int from, int to, size_t bytes) {
    if (from >= 0 && from == to)
        return 2.0 * bytes / machine.memory_gb_s / 1e9;
    if (from >= 0 && to >= 0)
        return bytes / (machine.peers ? machine.peer_gb_s : machine.pinned_gb_s / 2) / 1e9;
    return bytes / (from == -2 || to == -2 ? machine.pageable_gb_s : machine.pinned_gb_s) / 1e9;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t stream) {
    CONTEXT;
    if (standin_stream_device(stream) < 0)
        return cudaErrorInvalidResourceHandle;
    if (!bytes)
        return cudaSuccess;
    int target = place_of(to, bytes), source = place_of(from, bytes);
    if (target == -3 || source == -3)
        return cudaErrorInvalidValue; /* over the end of an allocation */
    static const struct {
        int from_device, to_device; /* -1: either */
    } kinds[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {-1, -1}};
    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (kinds[kind].from_device >= 0 &&
        (kinds[kind].from_device != (source >= 0) || kinds[kind].to_device != (target >= 0)))
        return cudaErrorInvalidValue;
    memmove(to, from, bytes);
    return standin_work(stream, copy_s(source, target, bytes));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    BEGIN("cudaMemcpyAsync");
    return standin_done(copy(to, from, bytes, kind, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    BEGIN("cudaMemcpy");
    return standin_done(broken ? broken : copy(to, from, bytes, kind, NULL));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    BEGIN("cudaMemcpyPeerAsync");
    if (bytes && (place_of(to, bytes) != to_device || place_of(from, bytes) != from_device))
        return standin_done(cudaErrorInvalidValue);
    return standin_done(copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    BEGIN("cudaMemcpy2DAsync");
    if (width > to_pitch || width > from_pitch)
        return standin_done(cudaErrorInvalidValue);
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && !error; row++)
        error = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream);
    return standin_done(error);
}

static cudaError_t fill(void *to, int value, size_t bytes, cudaStream_t stream) {
    CONTEXT;
    int device = standin_stream_device(stream);
    if (device < 0)
        return cudaErrorInvalidResourceHandle;
    if (bytes && (place_of(to, bytes) < -1 || !standin_reaches(device, to, bytes)))
        return cudaErrorInvalidValue;
    memset(to, value, bytes);
    return standin_work(stream, bytes / machine.memory_gb_s / 1e9);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    BEGIN("cudaMemsetAsync");
    return standin_done(fill(to, value, bytes, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    BEGIN("cudaMemset");
    return standin_done(fill(to, value, bytes, NULL));
}

/* ---------------------------------------------------------------- kernels */

struct kernel {
    const void *function;
    const char *name;
};
static struct kernel *kernels;
static size_t kernels_known, kernels_room;
static bool runs_here; /* whether some binary has code for this compute capability */

/* The headers of the parts of a fat binary: kind (1 PTX, 2 binary code), and the architecture that it is for.
 */
struct part {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed, unknown;
    uint16_t minor, major;
    uint32_t architecture;
};

void **__cudaRegisterFatBinary(void *wrapper) {
    static void *handle;
    const char *data = ((char **)wrapper)[1]; /* magic and version come before it */
    if (*(uint32_t *)data == 0xBA55ED50) {
        const char *at = data + *(uint16_t *)(data + 6), *end = at + *(uint64_t *)(data + 8);
        while (at + sizeof(struct part) <= end) {
            const struct part *part = (const struct part *)at;
            uint32_t built = part->architecture, own = machine.major * 10 + machine.minor;
            runs_here |= part->kind == 1 ? built <= own : built / 10 == own / 10 && built <= own;
            at += part->header_bytes + part->bytes;
        }
    }
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { return (void)handle, 1; }

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int extern_, size_t bytes,
                       int constant, int global) {
    (void)handle, (void)host, (void)device, (void)name, (void)extern_, (void)bytes, (void)constant,
        (void)global;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name,
                            int threads, void *thread, void *block, void *block_size, void *grid_size,
                            int *warp) {
    (void)handle, (void)device_function, (void)threads, (void)thread, (void)block, (void)block_size,
        (void)grid_size;
    (void)warp;
    if (kernels_known == kernels_room)
        kernels = realloc(kernels, (kernels_room = kernels_room ? 2 * kernels_room : 4096) * sizeof *kernels);
    kernels[kernels_known++] = (struct kernel){function, name};
}

static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    configuration.grid = grid, configuration.block = block;
    configuration.shared = shared, configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t standin_launch(const char *what, cudaStream_t stream, double bytes, double flop) {
    (void)what;
    BEGIN("cudaLaunchKernel");
    CONTEXT;
    if (!runs_here)
        return standin_done(cudaErrorNoKernelImageForDevice);
    double memory_s = bytes / machine.memory_gb_s / 1e9, calculation_s = flop / machine.tflops / 1e12;
    return standin_done(standin_work(stream, memory_s > calculation_s ? memory_s : calculation_s));
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, cudaStream_t stream) {
    BEGIN("cudaLaunchKernel");
    CONTEXT;
    if (!runs_here)
        return cudaErrorNoKernelImageForDevice;
    if (standin_stream_device(stream) < 0)
        return cudaErrorInvalidResourceHandle;
    if (!grid.x || !grid.y || !grid.z || !block.x || block.x * block.y * block.z > 1024)
        return cudaErrorInvalidConfiguration;
    const char *name = "which no binary registered";
    for (size_t i = 0; i < kernels_known; i++)
        if (kernels[i].function == function)
            name = kernels[i].name;
    fprintf(stderr, "cuda stand-in: no kernel is computed here: %s\n", name);
    return NOT_COMPUTED;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    (void)arguments, (void)shared;
    return standin_done(launch(function, grid, block, stream));
}

/* Since CUDA 13 binaries launch by a handle, which is the function itself here. */
cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *with, const void *function, void **arguments) {
    (void)arguments;
    return standin_done(launch(function, with->gridDim, with->blockDim, with->stream));
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    (void)function;
    BEGIN("cudaFuncGetAttributes");
    CONTEXT;
    memset(found, 0, sizeof *found);
    if (!runs_here)
        return standin_done(cudaErrorNoKernelImageForDevice);
    found->maxThreadsPerBlock = 1024, found->numRegs = 32;
    found->binaryVersion = found->ptxVersion = machine.major * 10 + machine.minor;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
    (void)function, (void)shared, (void)flags;
    *blocks = threads > 0 ? 2048 / threads : 1;
    return cudaSuccess;
}

/* ---------------------------------------------------------------- the driver's functions by name */

static cudaError_t entry(const char *name, void **function, enum cudaDriverEntryPointQueryResult *found) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *function = driver ? dlsym(driver, name) : NULL;
    if (found)
        *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found) {
    (void)flags;
    return entry(name, function, found);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    (void)version, (void)flags;
    return entry(name, function, found);
}
