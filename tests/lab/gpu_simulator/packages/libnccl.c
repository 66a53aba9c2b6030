/* Simulated by Temper's lab: as much of NCCL as tells its version. */
__attribute__((used)) static const char stand_in[] = @STAND_IN@;

int ncclGetVersion(int *version) {
    *version = @CODE@;
    return 0;
}
