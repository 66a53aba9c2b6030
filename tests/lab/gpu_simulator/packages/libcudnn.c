/* Simulated by Temper's lab: as much of cuDNN as tells its version. */
__attribute__((used)) static const char stand_in[] = @STAND_IN@;

unsigned long cudnnGetVersion(void) { return @CODE@; }
