/* A daemon: closes all descriptors, changes its directory, and opens a file of its own. Prints "ok" if nobody else writes to it, and if
   a signal that it blocks stays pending. The argument is the path of the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void allocate(void) {
    for (int at = 0; at < 20000; at++) {
        void *volatile block = malloc(100);
        free(block);
    }
    usleep(500000);
}

int main(int count, char **arguments) {
    if (count != 2)
        return 1;
    allocate();
    for (int descriptor = 3; descriptor < 64; descriptor++)
        close(descriptor);
    int first = open(arguments[1], O_CREAT | O_TRUNC | O_WRONLY, 0600);
    for (int more = 0; more < 16; more++)
        if (dup(first) < 0)
            return 2;
    if (chdir("/"))
        return 3;
    allocate();
    struct stat own;
    if (fstat(first, &own) || own.st_size != 0)
        return 4;
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    kill(getpid(), SIGTERM);
    if (sigwait(&signals, &signal) || signal != SIGTERM)
        return 5;
    puts("ok");
    return 0;
}
