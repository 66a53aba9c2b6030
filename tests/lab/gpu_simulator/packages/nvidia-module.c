/* Simulated by Temper's lab: an object with what modinfo and depmod read of a kernel module, and no code. */
__attribute__((used)) static const char stand_in[] = @STAND_IN@;

#define INFO(name, text) __attribute__((used, section(".modinfo"), aligned(1))) static const char info_##name[] = text

INFO(name, "name=nvidia");
INFO(license, "license=@LICENSE@");
INFO(version, "version=@VERSION@");
/* The build puts the kernel in its place: module-build.sh. */
INFO(vermagic, "vermagic=@VERMAGIC@");
INFO(description, "description=simulated by Temper's lab");
