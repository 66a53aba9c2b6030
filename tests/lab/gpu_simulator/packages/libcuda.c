/* Simulated by Temper's lab: as much of the CUDA driver library as tells its version. It has no devices. */
__attribute__((used)) static const char stand_in[] = @STAND_IN@;

int cuDriverGetVersion(int *version) {
    *version = @CODE@;
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    return 100; /* CUDA_ERROR_NO_DEVICE */
}
