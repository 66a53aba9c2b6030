/* Simulated by Temper's lab: programs of a node see the kernel that the simulated boot has chosen.
 *
 * Named in /etc/ld.so.preload. The node's kernel is the host's, and only uname(2) tells programs which it is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *name) {
    int result = (int)syscall(SYS_uname, name), before = errno;
    int file = result ? -1 : open("/run/boot-simulator/release", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        char release[sizeof name->release] = {0};
        if (read(file, release, sizeof release - 1) > 0)
            memcpy(name->release, release, sizeof release);
        close(file);
    }
    errno = before;
    return result;
}
