/* A stand-in for NCCL's host side (libnccl.so.2): ranks on one machine meet in a file that they share.
 *
 * Communicators, groups, devices, buffers and the calls of the ranks against each other are checked. Nothing
 * of NCCL's transports or algorithms is here: every rank reads the parts of all others.
 */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ncclResult_t */
enum {
    SUCCESS = 0,
    CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6
};
enum { SUM, PROD, MAX, MIN, AVG };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECV };
#define RANKS 16
#define PART (1 << 20)
#define MAIL (1 << 16)

typedef struct {
    char internal[128];
} unique_id;

/* What ranks share. */
struct meeting {
    atomic_int arrived, round, ranks_known, aborted;
    struct {
        int kind, type, operator, root;
        size_t count;
    } calls[RANKS];
    char part[RANKS][PART];
    struct {
        atomic_ulong written, taken;
        size_t bytes;
        char data[MAIL];
    } mail[RANKS][RANKS];
};

struct comm {
    struct meeting *meeting;
    int rank, ranks, device;
    atomic_int aborted;
    char error[256];
};

struct call {
    int kind, type, operator, peer;
    const void *from;
    void *to;
    size_t count;
    struct comm *comm;
    cudaStream_t stream;
    size_t done; /* bytes, of what is sent or received */
};

static __thread int depth, queued;
static __thread struct call queue[4 * RANKS];
static char last_error[256];

static int failed(struct comm *comm, int code, const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    if (comm)
        snprintf(comm->error, sizeof comm->error, "%s", why);
    return code;
}

const char *ncclGetErrorString(int code) {
    static const char *words[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return code >= 0 && code < 8 ? words[code] : "unknown result code";
}

const char *ncclGetLastError(struct comm *comm) { return comm ? comm->error : last_error; }

int ncclGetVersion(int *version) {
    *version = standin_machine()->nccl;
    return SUCCESS;
}

int ncclGetUniqueId(unique_id *id) {
    static int made;
    int code = standin_fault("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "nccl-%d-%d", getpid(), made++);
    return code;
}

/* Between two looks at other ranks: as CUDA waits for a GPU, polling unless there are more ranks than CPUs. */
static void look_again(const struct comm *comm) {
    if (comm->ranks <= sysconf(_SC_NPROCESSORS_ONLN))
        sched_yield();
    else
        usleep(50);
}

/* Wait for all ranks; false if somebody gave up. A rank that never comes is waited for, as NCCL does. */
static bool meet(struct comm *comm) {
    struct meeting *meeting = comm->meeting;
    int round = atomic_load(&meeting->round);
    if (atomic_fetch_add(&meeting->arrived, 1) == comm->ranks - 1) {
        atomic_store(&meeting->arrived, 0);
        atomic_fetch_add(&meeting->round, 1);
        return true;
    }
    for (int turns = 0; atomic_load(&meeting->round) == round; turns++) {
        if (atomic_load(&comm->aborted))
            return false;
        if (turns > 200)
            look_again(comm);
    }
    return true;
}

/* A number for a GPU of a machine. */
static size_t identity(int device) {
    size_t number = 14695981039346656037UL;
    for (const char *at = standin_machine()->state; *at; at++)
        number = (number ^ (unsigned char)*at) * 1099511628211UL; /* FNV-1a */
    return number + device;
}

static int join(struct comm **made, int ranks, const unique_id *id, int rank) {
    int code = standin_fault("ncclCommInit");
    if (code)
        return failed(NULL, code, "injected");
    if (ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return failed(NULL, INVALID_ARGUMENT, "no such rank, or more than the stand-in has room for");
    if (standin_call("nccl"))
        return failed(NULL, CUDA_ERROR, "the context is broken");
    char path[600];
    snprintf(path, sizeof path, "%s/%.127s", standin_machine()->meeting, id->internal);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct meeting)))
        return failed(NULL, SYSTEM_ERROR, "the file in which ranks meet cannot be made");
    struct comm *comm = calloc(1, sizeof *comm);
    comm->meeting = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    comm->rank = rank, comm->ranks = ranks, comm->device = standin_device();
    comm->meeting->calls[rank].count = identity(comm->device); /* two ranks on one GPU: NCCL refuses that */
    if (!meet(comm))
        return failed(NULL, INTERNAL_ERROR, "aborted");
    for (int other = 0; other < ranks; other++)
        if (other != rank && comm->meeting->calls[other].count == identity(comm->device))
            return failed(NULL, INVALID_USAGE, "Duplicate GPU detected");
    if (!meet(comm))
        return failed(NULL, INTERNAL_ERROR, "aborted");
    if (rank == 0)
        unlink(path);
    *made = comm;
    return SUCCESS;
}

int ncclCommInitRank(struct comm **made, int ranks, unique_id id, int rank) {
    return join(made, ranks, &id, rank);
}

int ncclCommInitRankConfig(struct comm **made, int ranks, unique_id id, int rank, void *config) {
    (void)config;
    return join(made, ranks, &id, rank);
}

int ncclCommInitRankScalable(struct comm **made, int ranks, int rank, int ids, unique_id *id, void *config) {
    (void)ids, (void)config;
    return join(made, ranks, id, rank);
}

int ncclCommAbort(struct comm *comm) {
    atomic_store(&comm->aborted, 1);
    return SUCCESS;
}

int ncclCommFinalize(struct comm *comm) { return (void)comm, SUCCESS; }
int ncclCommDestroy(struct comm *comm) { return (void)comm, SUCCESS; } /* a thread may still wait in it */
int ncclCommCount(struct comm *comm, int *ranks) { return *ranks = comm->ranks, SUCCESS; }
int ncclCommUserRank(struct comm *comm, int *rank) { return *rank = comm->rank, SUCCESS; }
int ncclCommCuDevice(struct comm *comm, int *device) { return *device = comm->device, SUCCESS; }

int ncclCommGetAsyncError(struct comm *comm, int *error) {
    (void)comm;
    *error = standin_fault("ncclCommGetAsyncError");
    return SUCCESS;
}

/* ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, fp16, fp32, fp64, bf16 */
static size_t bytes_of(int type) {
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? bytes[type] : 0;
}

static double number(const void *data, int type, size_t index) {
    switch (type) {
    case 0: return ((const int8_t *)data)[index];
    case 1: return ((const uint8_t *)data)[index];
    case 2: return ((const int32_t *)data)[index];
    case 3: return ((const uint32_t *)data)[index];
    case 4: return (double)((const int64_t *)data)[index];
    case 5: return (double)((const uint64_t *)data)[index];
    case 6: return standin_load(data, CUDA_R_16F, index);
    case 8: return standin_load(data, CUDA_R_64F, index);
    case 9: return standin_load(data, CUDA_R_16BF, index);
    default: return standin_load(data, CUDA_R_32F, index);
    }
}

static void put(void *data, int type, size_t index, double value) {
    switch (type) {
    case 0: ((int8_t *)data)[index] = (int8_t)value; break;
    case 1: ((uint8_t *)data)[index] = (uint8_t)value; break;
    case 2: ((int32_t *)data)[index] = (int32_t)value; break;
    case 3: ((uint32_t *)data)[index] = (uint32_t)value; break;
    case 4: ((int64_t *)data)[index] = (int64_t)value; break;
    case 5: ((uint64_t *)data)[index] = (uint64_t)value; break;
    case 6: standin_store(data, CUDA_R_16F, index, value); break;
    case 8: standin_store(data, CUDA_R_64F, index, value); break;
    case 9: standin_store(data, CUDA_R_16BF, index, value); break;
    default: standin_store(data, CUDA_R_32F, index, value);
    }
}

/* Reduce `count` numbers of all ranks' parts, in the order of the ranks: all get the same bits. */
static void reduce(struct comm *comm, int type, int operator, size_t count, void *to) {
    if (type == 7 && operator == SUM) { /* most of them, and in fp32 as NCCL adds */
        float *sum = to;
        memcpy(sum, comm->meeting->part[0], count * sizeof *sum);
        for (int rank = 1; rank < comm->ranks; rank++)
            for (size_t i = 0; i < count; i++)
                sum[i] += ((const float *)comm->meeting->part[rank])[i];
        return;
    }
    for (size_t i = 0; i < count; i++) {
        double sum = number(comm->meeting->part[0], type, i);
        for (int rank = 1; rank < comm->ranks; rank++) {
            double other = number(comm->meeting->part[rank], type, i);
            sum = operator == MAX    ? (other > sum ? other : sum)
                  : operator == MIN  ? (other < sum ? other : sum)
                  : operator == PROD ? sum * other
                                     : sum + other;
        }
        put(to, type, i, operator == AVG ? sum / comm->ranks : sum);
    }
}

/* Publish a part of this rank's bytes, wait for all, take what is wanted, and wait until all have. */
static int exchange(struct call *call, size_t bytes) {
    struct comm *comm = call->comm;
    struct meeting *meeting = comm->meeting;
    size_t width = bytes_of(call->type);
    int targets = call->kind == REDUCE_SCATTER ? comm->ranks : 1;
    for (int target = 0; target < targets; target++)
        for (size_t at = 0; at < bytes; at += PART) {
            size_t part = bytes - at < PART ? bytes - at : PART;
            if (call->from && (call->kind != BROADCAST || comm->rank == call->peer))
                memcpy(meeting->part[comm->rank], (const char *)call->from + target * bytes + at, part);
            if (!meet(comm))
                return failed(comm, INTERNAL_ERROR, "aborted");
            char *to = (char *)call->to + at;
            if (call->kind == ALL_REDUCE || (call->kind == REDUCE_SCATTER && target == comm->rank) ||
                (call->kind == REDUCE && comm->rank == call->peer))
                reduce(comm, call->type, call->operator, part / width, to);
            for (int rank = 0; rank < comm->ranks && call->kind == ALL_GATHER; rank++)
                memcpy(to + rank * bytes, meeting->part[rank], part);
            if (call->kind == BROADCAST)
                memcpy(to, meeting->part[call->peer], part);
            if (!meet(comm))
                return failed(comm, INTERNAL_ERROR, "aborted");
        }
    return SUCCESS;
}

static int collective(struct call *call) {
    struct comm *comm = call->comm;
    struct meeting *meeting = comm->meeting;
    meeting->calls[comm->rank].kind = call->kind, meeting->calls[comm->rank].type = call->type;
    meeting->calls[comm->rank].operator = call->operator, meeting->calls[comm->rank].count = call->count;
    meeting->calls[comm->rank].root = call->peer;
    if (!meet(comm))
        return failed(comm, INTERNAL_ERROR, "aborted");
    for (int rank = 0; rank < comm->ranks; rank++)
        if (memcmp(&meeting->calls[rank], &meeting->calls[comm->rank], sizeof meeting->calls[0])) {
            fprintf(stderr, "cuda stand-in: ranks %d and %d call different collectives\n", comm->rank, rank);
            return failed(comm, INVALID_USAGE, "the ranks' calls do not match: NCCL would hang");
        }
    if (!meet(comm)) /* nobody may write the next call before all have read this one */
        return failed(comm, INTERNAL_ERROR, "aborted");
    return exchange(call, call->count * bytes_of(call->type));
}

/* Send and receive parts of all these calls as they come; true if something moved. */
static bool move(struct call *call) {
    struct comm *comm = call->comm;
    size_t bytes = call->count * bytes_of(call->type),
           part = bytes - call->done < MAIL ? bytes - call->done : MAIL;
    bool sends = call->kind == SEND;
    int from = sends ? comm->rank : call->peer, to = sends ? call->peer : comm->rank;
    unsigned long written = atomic_load(&comm->meeting->mail[from][to].written);
    unsigned long taken = atomic_load(&comm->meeting->mail[from][to].taken);
    if (call->done == bytes || (written != taken) == sends)
        return false;
    if (sends) {
        memcpy(comm->meeting->mail[from][to].data, (const char *)call->from + call->done, part);
        comm->meeting->mail[from][to].bytes = part;
        atomic_fetch_add(&comm->meeting->mail[from][to].written, 1);
    } else {
        memcpy((char *)call->to + call->done, comm->meeting->mail[from][to].data, part);
        atomic_fetch_add(&comm->meeting->mail[from][to].taken, 1);
    }
    call->done += part;
    return true;
}

/* All calls of a group: what is sent and received goes on together, or ranks would wait for each other. */
static int run(struct call *calls, int count) {
    bool left = true;
    for (int i = 0; i < count; i++)
        if (calls[i].kind < SEND) {
            int code = collective(&calls[i]);
            if (code)
                return code;
        }
    while (left) {
        bool moved = false;
        left = false;
        for (int i = 0; i < count; i++)
            if (calls[i].kind >= SEND) {
                moved |= move(&calls[i]);
                left |= calls[i].done < calls[i].count * bytes_of(calls[i].type);
                if (atomic_load(&calls[i].comm->aborted))
                    return failed(calls[i].comm, INTERNAL_ERROR, "aborted");
            }
        if (left && !moved)
            look_again(calls[0].comm);
    }
    return SUCCESS;
}

static int start(struct call call, const char *name, size_t from_count, size_t to_count) {
    struct comm *comm = call.comm;
    size_t width = bytes_of(call.type);
    int code = standin_fault(name);
    if (code)
        return failed(comm, code, "injected");
    if (standin_call("nccl"))
        return failed(comm, CUDA_ERROR, "Cuda failure: the context is broken");
    if (!width)
        return failed(comm, standin_missing("a collective of such numbers", INVALID_ARGUMENT),
                      "unknown type");
    if (standin_stream_device(call.stream) != comm->device)
        return failed(comm, INVALID_USAGE, "the stream is not of the communicator's device");
    if ((from_count && !standin_reaches(comm->device, call.from, from_count * width)) ||
        (to_count && !standin_reaches(comm->device, call.to, to_count * width)))
        return failed(comm, INVALID_ARGUMENT, "a buffer is not memory of the communicator's device");
    double bytes = (double)(from_count > to_count ? from_count : to_count) * width;
    double crossed = (call.kind == ALL_REDUCE ? 2.0 : 1.0) * (comm->ranks - 1) / comm->ranks;
    standin_work(call.stream, bytes * crossed / standin_machine()->nccl_gb_s / 1e9);
    if (depth) {
        if (queued == (int)(sizeof queue / sizeof *queue))
            return failed(comm, standin_missing("so large a group", INTERNAL_ERROR), "too large a group");
        queue[queued++] = call;
        return SUCCESS;
    }
    return run(&call, 1);
}

int ncclGroupStart(void) { return depth++, SUCCESS; }

int ncclGroupEnd(void) {
    if (!depth)
        return failed(NULL, INVALID_USAGE, "ncclGroupEnd: not in a group call");
    if (--depth)
        return SUCCESS;
    int count = queued;
    queued = 0;
    return run(queue, count);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operator, struct comm *comm,
                  cudaStream_t stream) {
    return start((struct call){ALL_REDUCE, type, operator, 0, from, to, count, comm, stream, 0},
                 "ncclAllReduce", count, count);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm,
                  cudaStream_t stream) {
    return start((struct call){ALL_GATHER, type, 0, 0, from, to, count, comm, stream, 0}, "ncclAllGather",
                 count, count * comm->ranks);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operator, struct comm *comm,
                      cudaStream_t stream) {
    return start((struct call){REDUCE_SCATTER, type, operator, 0, from, to, count, comm, stream, 0},
                 "ncclReduceScatter", count * comm->ranks, count);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *comm,
                  cudaStream_t stream) {
    return start((struct call){BROADCAST, type, 0, root, from, to, count, comm, stream, 0}, "ncclBroadcast",
                 comm->rank == root ? count : 0, count);
}

int ncclBcast(void *buffer, size_t count, int type, int root, struct comm *comm, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int operator, int root, struct comm *comm,
               cudaStream_t stream) {
    return start((struct call){REDUCE, type, operator, root, from, to, count, comm, stream, 0}, "ncclReduce",
                 count, comm->rank == root ? count : 0);
}

int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, cudaStream_t stream) {
    return start((struct call){SEND, type, 0, peer, from, NULL, count, comm, stream, 0}, "ncclSend", count,
                 0);
}

int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, cudaStream_t stream) {
    return start((struct call){RECV, type, 0, peer, NULL, to, count, comm, stream, 0}, "ncclRecv", 0, count);
}

/* Since NCCL 2.28: `count` numbers to each rank, and as many from it. */
int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct comm *comm, cudaStream_t stream) {
    size_t bytes = count * bytes_of(type);
    int code = standin_fault("ncclAlltoAll");
    if (code)
        return failed(comm, code, "injected");
    ncclGroupStart();
    for (int peer = 0; peer < comm->ranks && !code; peer++) {
        code = ncclSend((const char *)from + peer * bytes, count, type, peer, comm, stream);
        if (!code)
            code = ncclRecv((char *)to + peer * bytes, count, type, peer, comm, stream);
    }
    int ended = ncclGroupEnd();
    return code ? code : ended;
}

/* A buffer that a communicator may use in place: it has to be memory of its device. */
struct registered {
    struct comm *comm;
    struct registered *next;
};
static struct registered *registrations;
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

int ncclCommRegister(struct comm *comm, void *buffer, size_t bytes, void **handle) {
    int code = standin_fault("ncclCommRegister");
    if (code)
        return failed(comm, code, "injected");
    if (!buffer || !bytes || !handle || !standin_reaches(comm->device, buffer, bytes))
        return failed(comm, INVALID_ARGUMENT, "a buffer is not memory of the communicator's device");
    struct registered *made = malloc(sizeof *made);
    pthread_mutex_lock(&registering);
    *made = (struct registered){comm, registrations};
    registrations = made;
    pthread_mutex_unlock(&registering);
    *handle = made;
    return SUCCESS;
}

int ncclCommDeregister(struct comm *comm, void *handle) {
    struct registered *found = NULL;
    pthread_mutex_lock(&registering);
    for (struct registered **at = &registrations; *at && !found; at = &(*at)->next)
        if (*at == handle && (*at)->comm == comm) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&registering);
    free(found);
    return found ? SUCCESS : failed(comm, INVALID_ARGUMENT, "no buffer is registered by this handle");
}
