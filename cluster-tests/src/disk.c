/* A disk that can hang. Loaded before the C library into a process, it lets no sync of a file begin while the file exists
   that the environment names: what the process writes stays in memory, and whoever waits for the disk waits. Built and
   used by disk.rs. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for_the_disk(void)
{
    const char *path = getenv("DISK_HANGS_WHILE");

    while (path != NULL && access(path, F_OK) == 0)
        usleep(5000);
}

int fsync(int file)
{
    wait_for_the_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    wait_for_the_disk();
    return (int)syscall(SYS_fdatasync, file);
}
