/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks while another thread fails to open the driver, at the moment when it unlocks: the library is compiled with this file's unlock in
 * the place of pthread's. Prints what a use of CUDA comes to in the child, or that it hangs; then that of the parent, and of a later child.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fmhaforge.h"

static atomic_bool unlocking;
static atomic_bool forked;

int slow_unlock(pthread_mutex_t* mutex);

int slow_unlock(pthread_mutex_t* mutex)
{
    atomic_store(&unlocking, true);
    for (int i = 0; i < 5000 && !atomic_load(&forked); ++i) {
        nanosleep(&(struct timespec) {0, 1000000}, NULL);
    }
    return pthread_mutex_unlock(mutex);
}

static fmhaforge_status use(void)
{
    const fmhaforge_row* row = NULL;
    return fmhaforge_find_row("fmha_v2_d64", FMHAFORGE_CURRENT_DEVICE, &row);
}

static void* use_in_thread(void* status)
{
    *(fmhaforge_status*)status = use();
    return NULL;
}

static void use_in_child(void)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(3);
        _exit((int)use());
    }
    atomic_store(&forked, true);
    int status = 0;
    (void)waitpid(child, &status, 0);
    puts(WIFEXITED(status) ? fmhaforge_status_name((fmhaforge_status)WEXITSTATUS(status)) : "hangs");
}

int main(void)
{
    pthread_t thread;
    fmhaforge_status status = FMHAFORGE_OK;
    if (pthread_create(&thread, NULL, use_in_thread, &status) != 0) {
        return 1;
    }
    while (!atomic_load(&unlocking)) {
        nanosleep(&(struct timespec) {0, 1000000}, NULL);
    }
    use_in_child();
    (void)pthread_join(thread, NULL);
    puts(fmhaforge_status_name(status));
    use_in_child();
    return 0;
}
