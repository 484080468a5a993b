// Allocates 1000 blocks in a child of a fork and 2000 in a child of that child, or does so while another thread runs if there is an
// argument. The parent holds a block of 64 MiB meanwhile. Prints "ok".
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile blocks[2000];

static void *wait_long(void *unused) {
    (void)unused;
    sleep(1000);
    return NULL;
}

static int run_child(int generation) {
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 1000 * generation; i++)
            blocks[i] = malloc(999);
        int status = generation < 2 ? run_child(generation + 1) : 0;
        for (int i = 0; i < 1000 * generation; i++)
            free(blocks[i]);
        _exit(status);
    }
    int status = 1;
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t thread;
    if (argc > 1 && pthread_create(&thread, NULL, wait_long, NULL) != 0)
        return 1;
    void *volatile before = malloc(999), *volatile inherited = malloc(64 << 20);
    int status = run_child(1);
    free(before);
    free(inherited);
    if (status == 0)
        puts("ok");
    return status;
}
