/* A disk that can hang, or be full. Loaded before the C library into a process, it lets no sync of a file begin while the
   file exists that the environment names: what the process writes stays in memory, and whoever waits for the disk waits.
   While another file exists, every sync fails for want of room. Built and used by disk.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int exists(const char *name)
{
    const char *path = getenv(name);

    return path != NULL && access(path, F_OK) == 0;
}

static int sync_by(long call, int file)
{
    while (exists("DISK_HANGS_WHILE"))
        usleep(5000);
    if (exists("DISK_FULL_WHILE")) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(call, file);
}

int fsync(int file)
{
    return sync_by(SYS_fsync, file);
}

int fdatasync(int file)
{
    return sync_by(SYS_fdatasync, file);
}
