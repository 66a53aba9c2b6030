/* An EGL of two NVIDIA devices and one other, for tests: STAND_IN in the environment makes one thing go wrong.
   It keeps the one colour that it was cleared with, and hands out its functions as libglvnd does. */
#include <stdlib.h>
#include <string.h>

static float colour[4];

static int goes_wrong(const char *what)
{
    const char *fault = getenv("STAND_IN");
    return fault && !strcmp(fault, what);
}

static unsigned query_devices(int most, void **devices, int *count)
{
    *count = goes_wrong("one") ? 2 : 3;
    for (int number = 0; number < *count && number < most; number++)
        devices[number] = (void *)(long)(number + 1);
    return !goes_wrong("query");
}

static const char *describe(void *device, int name)
{
    return device == (void *)1 ? "EGL_MESA_device_software" : "EGL_NV_device_cuda EGL_EXT_device_drm";
}

static void *get_display(unsigned platform, void *device, const int *attributes)
{
    return platform == 0x313F ? device : NULL;
}

unsigned eglInitialize(void *display, int *major, int *minor)
{
    if (goes_wrong("crash"))
        abort();
    return !(goes_wrong("initialize") && display == (void *)3);
}

static void clear_color(float red, float green, float blue, float alpha)
{
    float given[4] = {red, green, blue, alpha};
    memcpy(colour, given, sizeof given);
}

static void clear(unsigned mask) {}

static void read_pixels(int x, int y, int w, int h, unsigned format, unsigned type, unsigned char *pixel)
{
    for (int part = 0; part < 4; part++)
        pixel[part] = (unsigned char)(colour[part] * 255) ^ (part == 1 && goes_wrong("pixel"));
}

static const char *get_string(unsigned name) { return "NVIDIA Stand-In/PCIe/SSE2"; }

int eglGetError(void) { return 0x3001; }
unsigned eglTerminate(void *display) { return 1; }
unsigned eglBindAPI(unsigned api) { return api == 0x30A0; }
void *eglCreatePbufferSurface(void *display, void *config, const int *list) { return (void *)8; }
void *eglCreateContext(void *display, void *config, void *share, const int *list) { return (void *)9; }
unsigned eglMakeCurrent(void *display, void *draw, void *read, void *context) { return 1; }

unsigned eglChooseConfig(void *display, const int *list, void **configs, int most, int *count)
{
    *configs = (void *)7;
    *count = !goes_wrong("configuration");
    return 1;
}

void *eglGetProcAddress(const char *name)
{
    static const struct { const char *name; void *function; } known[] = {
        {"eglQueryDevicesEXT", query_devices}, {"eglQueryDeviceStringEXT", describe},
        {"eglGetPlatformDisplayEXT", get_display}, {"glClearColor", clear_color}, {"glClear", clear},
        {"glReadPixels", read_pixels}, {"glGetString", get_string},
    };
    for (unsigned number = 0; number < sizeof known / sizeof *known && !goes_wrong("old"); number++)
        if (!strcmp(name, known[number].name))
            return known[number].function;
    return NULL;
}
