/* A child of a process whose threads use a pool: it uses the pool, and functions for devices refuse. */
#include <millpond.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static millpond_pool *pool, *device;
static atomic_int ended;

static int use(size_t bytes) {
    void *by_address = NULL, *sized = NULL;
    if (millpond_alloc(pool, bytes, 0, 0, &by_address) != MILLPOND_OK || millpond_alloc_sized(pool, bytes, 0, 0, &sized) != MILLPOND_OK) {
        return 1;
    }
    memset(by_address, 1, bytes);
    memset(sized, 2, bytes);
    return millpond_free(pool, by_address) != MILLPOND_OK || millpond_free_sized(pool, sized, bytes, 0) != MILLPOND_OK;
}

static void *work(void *unused) {
    for (size_t bytes = 1; !ended; bytes = bytes * 7 % 100003 + 1) {
        if (use(bytes)) {
            fprintf(stderr, "%s\n", millpond_last_error());
            exit(1);
        }
    }
    return unused;
}

static int child(void *of_parent, void *of_device) {
    for (size_t bytes = 1; bytes < 100000; bytes += 997) {
        if (use(bytes)) {
            return 1;
        }
    }
    if (millpond_free(pool, of_parent) != MILLPOND_OK) {
        return 2;
    }
    void *block;
    if (millpond_device_alloc(device, 100, NULL, &block) != MILLPOND_CUDA_ERROR || strstr(millpond_last_error(), "fork") == NULL) {
        return 3;
    }
    if (millpond_device_free(device, of_device, NULL) != MILLPOND_CUDA_ERROR) {
        return 4;
    }
    return 0;
}

int main(void) {
    void *of_parent, *of_device;
    if (millpond_pool_create(NULL, &pool) != MILLPOND_OK || millpond_device_pool_create(0, NULL, &device) != MILLPOND_OK ||
        millpond_alloc(pool, 5000, 0, 0, &of_parent) != MILLPOND_OK ||
        millpond_device_alloc(device, 5000, NULL, &of_device) != MILLPOND_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        return 1;
    }
    pthread_t threads[3];
    for (int at = 0; at < 3; at++) {
        pthread_create(&threads[at], NULL, work, NULL);
    }
    for (int round = 0; round < 50; round++) {
        pid_t id = fork();
        if (id == 0) {
            alarm(20);
            _exit(child(of_parent, of_device));
        }
        int status = 0;
        if (id < 0 || waitpid(id, &status, 0) != id || status != 0) {
            fprintf(stderr, "round %d: the child ended with %#x\n", round, (unsigned)status);
            return 1;
        }
    }
    ended = 1;
    for (int at = 0; at < 3; at++) {
        pthread_join(threads[at], NULL);
    }
    if (millpond_free(pool, of_parent) != MILLPOND_OK || millpond_device_free(device, of_device, NULL) != MILLPOND_OK) {
        return 1;
    }
    return millpond_pool_destroy(pool) != MILLPOND_OK || millpond_pool_destroy(device) != MILLPOND_OK;
}
