/* Simulated by Temper's lab: as much of NVML as tells versions. It is linked with nothing; whoever loads it has the C library. */
__attribute__((used)) static const char stand_in[] = @STAND_IN@;

extern int open(const char *, int, ...);
extern long read(int, void *, unsigned long);
extern int close(int);

static const char library[] = "@VERSION@";
static char driver[32];

enum { SUCCESS = 0, UNINITIALIZED = 1, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, LIB_RM_VERSION_MISMATCH = 18 };

static int same(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

static int give(const char *text, char *buffer, unsigned size) {
    unsigned length = 0;
    while (text[length]) length++;
    if (size <= length) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i <= length; i++) buffer[i] = text[i];
    return SUCCESS;
}

int nvmlInit_v2(void) {
    int file = open("/sys/module/nvidia/version", 0);
    if (file < 0) return DRIVER_NOT_LOADED;
    long length = read(file, driver, sizeof driver - 1);
    close(file);
    while (length > 0 && driver[length - 1] <= ' ') length--;
    driver[length > 0 ? length : 0] = 0;
    if (same(driver, library)) return SUCCESS;
    driver[0] = 0;
    return LIB_RM_VERSION_MISMATCH;
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    return driver[0] ? give(driver, buffer, size) : UNINITIALIZED;
}

const char *nvmlErrorString(int result) {
    switch (result) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
