/* Threads whose first allocation is made by pthread_getattr_np, which holds a lock of the thread meanwhile. Prints "ok". */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *ask(void *unused) {
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes))
        return "no attributes";
    pthread_attr_destroy(&attributes);
    return unused;
}

int main(void) {
    alarm(60);
    for (int round = 0; round < 4; round++) {
        pthread_t thread;
        void *wrong = NULL;
        if (pthread_create(&thread, NULL, ask, NULL) || pthread_join(thread, &wrong) || wrong)
            return 1;
    }
    puts("ok");
    return 0;
}
