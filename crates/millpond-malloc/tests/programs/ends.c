// Allocates 1000 blocks of 999 bytes and ends in the way that argv[1] names.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile blocks[1000];

static void allocate(void) {
    for (int i = 0; i < 1000; i++)
        blocks[i] = malloc(999);
}

static void *last_thread(void *unused) {
    (void)unused;
    usleep(100000);
    allocate();
    return NULL;
}

static void say_ok(void) { write(STDOUT_FILENO, "ok\n", 3); }

static void leave(int unused) {
    (void)unused;
    _exit(3);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "last-thread") == 0) {
        // The process ends after the other thread.
        atexit(say_ok);
        pthread_t thread;
        pthread_create(&thread, NULL, last_thread, NULL);
        pthread_exit(NULL);
    }
    if (strcmp(how, "vfork") == 0) {
        // The child shares the memory of its parent, which is still recorded afterwards.
        pid_t child = vfork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    allocate();
    if (strcmp(how, "_exit") == 0)
        _exit(3);
    if (strcmp(how, "_Exit") == 0)
        _Exit(3);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(3);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "ignored") == 0) {
        signal(SIGABRT, SIG_IGN);
        abort();
    }
    if (strcmp(how, "handler") == 0) {
        signal(SIGTERM, leave);
        raise(SIGTERM);
    }
    return 3;
}
